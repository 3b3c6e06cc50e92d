"""Which of the user's modules ran at a stack: torch's frames tell that one was called, and where
the `forward` of its class lies tells which. Works for stacks of any source, without hooks."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpumem_magic.values.recording import Frame, Modules, Running, Stack

_CALLS = frozenset({"_wrapped_call_impl", "_call_impl", "_slow_forward", "inner"})
_INDEX = re.compile(r"(.+)\[(\d+)\]")
_INDICES_OF = re.compile(r"\[[^\]]*\]")
_INDICES = 3
_SHOWN = 80


class Forward(NamedTuple):
    """Where the `forward` of a class lies: its file, its first line and its last."""

    filename: str
    first: int
    last: int


def forwards_of(modules: Mapping[str, type]) -> dict[str, Forward | None]:
    """Where the `forward` of each module lies, by the same paths; None where it is no function."""
    known = {kind: _forward(kind) for kind in set(modules.values())}
    return {path: known[kind] for path, kind in modules.items()}


def _forward(kind: type) -> Forward | None:
    function = inspect.getattr_static(kind, "forward", None)
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None:
        return None
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return Forward(code.co_filename, code.co_firstlineno, max(lines, default=0))


def name_modules(stacks: Sequence[Stack], forwards: Mapping[str, Forward | None]) -> Modules:
    """The modules by path, and which of them ran at each stack. `forwards`: of each, by path."""
    paths = _merge(forwards)
    search = _Search({(paths[path], at): None for path, at in forwards.items() if at})
    return Modules(paths, tuple(map(search.running, stacks)))


def _merge(forwards: Mapping[str, Forward | None]) -> dict[str, str]:
    """Each path with its indices widened to those of all modules of its class in its list."""
    alike: dict[tuple[str, Forward | None], list[int]] = {}
    for path, forward in forwards.items():
        if match := _INDEX.fullmatch(path):
            alike.setdefault((match[1], forward), []).append(int(match[2]))
    merged: dict[str, str] = {}
    for path in sorted(forwards, key=len):
        if match := _INDEX.fullmatch(path):
            head, tail = match[1], f"[{_span(alike[match[1], forwards[path]])}]"
        else:
            head, dot, name = path.rpartition(".")
            tail = dot + name
        merged[path] = merged.get(head, head) + tail
    return merged


def _span(indices: Iterable[int]) -> str:
    """ "0..11", or "0, 2", or "0, 3, 6, ..." """
    found = sorted(indices)
    if len(found) > 1 and found[-1] - found[0] == len(found) - 1:
        return f"{found[0]}..{found[-1]}"
    more = ", ..." if len(found) > _INDICES else ""
    return ", ".join(map(str, found[:_INDICES])) + more


class _Search:
    """Follows the calls of modules down a stack; looks at each frame once in each module."""

    def __init__(self, places: Iterable[tuple[str, Forward]]) -> None:
        self._places: dict[str, list[tuple[str, Forward]]] = {}
        for path, forward in places:
            self._places.setdefault(forward.filename, []).append((path, forward))
        self._found: dict[tuple[str, Frame], dict[str, tuple[int, str]]] = {}

    def running(self, stack: Stack) -> Running | None:
        """The innermost module that is known."""
        path, text, outermost, called = "", "", 0, False
        before: Frame | None = None
        caller: Frame | None = None
        for depth in range(len(stack) - 1, -1, -1):
            frame = stack[depth]
            if _is_call(frame):
                caller = before or caller
                called, before = True, None
                continue
            before = frame
            if called and (found := self._choose(path, frame, caller)):
                path, text, called = found, source_of(frame)[:_SHOWN], False
                outermost = outermost or depth + 1
        return Running(path, text, outermost) if path else None

    def _choose(self, path: str, frame: Frame, caller: Frame | None) -> str | None:
        """The module inside that of `path` whose `forward` the frame runs; where it may be one of
        several, the one that the caller's line names, or the first."""
        inside = self._nearest(path, frame)
        if len(inside) > 1 and caller:
            named = re.findall(r"\w+(?=\()", source_of(caller))
            inside = {name: inside[name] for name in named if name in inside} or inside
        return min(inside.values())[1] if inside else None

    def _nearest(self, path: str, frame: Frame) -> dict[str, tuple[int, str]]:
        """Of the modules inside that of `path` whose `forward` the frame runs those that lie least
        deep, by their last names: the first of each, with its number among all."""
        if (path, frame) not in self._found:
            places = self._places.get(frame.filename, ())
            within = (one for one, at in places if at.first <= frame.line <= at.last)
            inside = [(_depth(one), one) for one in within if _lies_in(one, path)]
            least = min(inside, default=(0, ""))[0]
            nearest = [one for depth, one in inside if depth == least]
            numbered = reversed([*enumerate(nearest)])
            self._found[path, frame] = {one.rpartition(".")[2]: (n, one) for n, one in numbered}
        return self._found[path, frame]


def _is_call(frame: Frame) -> bool:
    """Whether it is torch's way from `module(x)` to `module.forward(x)`."""
    if frame.function.rpartition(".")[2] not in _CALLS:
        return False
    return frame.filename.replace("\\", "/").endswith("torch/nn/modules/module.py")


def _lies_in(path: str, outer: str) -> bool:
    return not outer or path.startswith((f"{outer}.", f"{outer}["))


def _depth(path: str) -> int:
    return sum(map(_INDICES_OF.sub("[", path).count, ".["))


def source_of(frame: Frame) -> str:
    """The text of the frame's line; empty where there is none."""
    return linecache.getline(frame.filename, frame.line).strip()
