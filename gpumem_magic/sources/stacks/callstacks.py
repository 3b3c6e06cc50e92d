"""Python stacks, captured fast at every allocation, resolved once when the cell is over."""

from __future__ import annotations

from bisect import bisect_right
from itertools import starmap
from types import CodeType, FrameType
from typing import Final

from gpumem_magic.sources.stacks.frames import PACKAGE, outwards
from gpumem_magic.values.recording import Frame, Stack

_MACHINERY: Final = ("torch/utils/_python_dispatch.py", "torch/overrides.py")
_SHELL: Final = "IPython/core/interactiveshell.py"

_CACHE: Final = 0
"""In place of an instruction: what the one before it keeps, to be faster."""

address: Final = object.__hash__
"""A number that only one object has while it lives, as `id` is, whose every call audit hooks are
told of: in a dry run there is one."""


def _positions(frame: FrameType | None, stop: FrameType | None) -> tuple[int, ...]:
    """Two numbers per frame up to `stop`: its code object and its instruction."""
    positions: list[int] = []
    append, at = positions.append, address
    while frame is not stop and frame is not None:
        append(at(frame.f_code))
        append(frame.f_lasti)
        frame = frame.f_back
    return tuple(positions)


class CallStacks:
    """Captures many stacks quickly, each distinct one once, and resolves them when asked.

    Code objects of captured stacks are kept, frames are not. `begin` and `end` bracket a cell.
    """

    def __init__(self) -> None:
        self._stop: FrameType | None = None
        self._indices: dict[tuple[int, ...], int] = {}
        self._captured: list[tuple[tuple[CodeType, int], ...]] = []
        self._frames: dict[tuple[int, int], Frame | None] = {}
        self._lines: dict[int, _Lines] = {}
        self._words: dict[int, bytes] = {}

    def begin(self, frame: FrameType, outermost: FrameType | None = None) -> None:
        """Leave out `outermost` and what called it; by default what lies below the notebook's cell,
        if `frame` was called on behalf of one."""
        for caller in outwards(None if outermost else frame):
            if _is_shell(caller.f_code, "run_cell_async"):
                outermost = caller
        self._stop = outermost

    def end(self) -> None:
        """Let go of the frame that `begin` found."""
        self._stop = None

    def capture(self, frame: FrameType | None) -> int:
        """The index of the stack that begins at `frame`; 0.13 us a frame (Python 3.11)."""
        key = _positions(frame, self._stop)
        index = self._indices.get(key)
        return self._add(key, frame) if index is None else index

    def _add(self, key: tuple[int, ...], frame: FrameType | None) -> int:
        pairs = []
        while frame is not None and frame is not self._stop:
            pairs.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        self._captured.append(tuple(pairs))  # keeps the code objects, and so the key's ids, valid
        self._indices[key] = len(self._captured) - 1
        return len(self._captured) - 1

    def resolve(self, index: int) -> Stack:
        """The stack that `capture` numbered, without frames of torch's and our own dispatching."""
        pairs = self._captured[index]
        places = range(len(pairs) - 1, -1, -1)  # the shell's frames are among the outermost
        shell = next((i for i in places if _is_shell(pairs[i][0], "run_code")), len(pairs))
        return tuple(filter(None, starmap(self._frame, pairs[:shell])))

    def __len__(self) -> int:
        return len(self._captured)

    def stacks(self) -> tuple[Stack, ...]:
        """All captured stacks, in the order of their indices."""
        return tuple(map(self.resolve, range(len(self._captured))))

    def first_alike(self) -> list[int]:
        """For each captured stack the first one at the same instructions, whatever the frames in
        between that no user wants to see."""
        first: dict[tuple[tuple[int, int], ...], int] = {}
        captured = enumerate(self._captured)
        return [first.setdefault(self._instructions(pairs), i) for i, pairs in captured]

    def _instructions(self, pairs: tuple[tuple[CodeType, int], ...]) -> tuple[tuple[int, int], ...]:
        seen = [self._frame(*pair) is not None for pair in pairs]
        inner = seen.index(True) if True in seen else len(seen)
        return tuple(self._begin(*p) for i, p in enumerate(pairs) if i < inner or seen[i])

    def _begin(self, code: CodeType, at: int) -> tuple[int, int]:
        """Where the instruction begins: one that was sped up may be left behind its caches."""
        words = self._words.get(id(code)) or self._words.setdefault(id(code), code.co_code)
        while at > 0 and words[at] == _CACHE:
            at -= 2
        return id(code), at

    def _frame(self, code: CodeType, instruction: int) -> Frame | None:
        key = id(code), instruction
        try:
            return self._frames[key]
        except KeyError:
            lines = self._lines.get(key[0]) or self._lines.setdefault(key[0], _Lines(code))
            return self._frames.setdefault(key, _frame_at(code, lines.at(instruction)))


class _Lines:
    """The line table of a code object, read once: that of a cell may have a million rows."""

    def __init__(self, code: CodeType) -> None:
        rows = [row for row in code.co_lines() if row[0] < row[1]]
        self._starts = [start for start, _, _ in rows]
        self._lines = [line for _, _, line in rows]
        self._first = code.co_firstlineno

    def at(self, instruction: int) -> int:
        """The instruction's line; the first of the code where it has none, or has not begun."""
        row = bisect_right(self._starts, instruction) - 1
        line = self._lines[row] if row >= 0 else None
        return self._first if line is None else line


def _is_shell(code: CodeType, function: str) -> bool:
    return code.co_name == function and code.co_filename.replace("\\", "/").endswith(_SHELL)


def _frame_at(code: CodeType, line: int) -> Frame | None:
    """The frame at that line of `code`; None for frames that no user wants to see."""
    path = code.co_filename
    if path.startswith(PACKAGE) or path.replace("\\", "/").endswith(_MACHINERY):
        return None
    return Frame(path, line, _function(code.co_name))


def _function(name: str) -> str:
    """The code's name; IPython 7.34 calls that of a cell `<cell line: 3>`."""
    return "<module>" if name.startswith("<cell line: ") else name
