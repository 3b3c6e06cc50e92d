"""The names that user code can see: a namespace and the locals of its running functions."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import islice
from types import FrameType
from typing import Any

from gpumem_magic.sources.stacks.frames import LIBRARIES, outwards

_SHELLS_OWN = re.compile(r"_{1,3}|_i{0,3}|_i?\d+|_oh|_ih|_dh|_sh|In|Out|exit|quit|get_ipython")


def is_shells_own(name: str) -> bool:
    """Whether IPython put the name there: `_`, `Out`, `In` and their like."""
    return _SHELLS_OWN.fullmatch(name) is not None


def is_spoken_of(name: object) -> bool:
    """Whether messages speak of what has the name: neither where it has an underscore, nor where it
    is no name that code could use."""
    return isinstance(name, str) and not (name.startswith("_") or is_shells_own(name))


class UserNames:
    """The names of a notebook without IPython's entries for each cell (`_i57`, `_57`), which may be
    thousands: only what came after the last entry that was seen is walked again."""

    def __init__(self) -> None:
        self._namespace: dict[str, Any] = {}
        self._before: list[str] = []  # the user's names that come before `_entry`
        self._entry = ""
        self._place = 0  # of `_entry`, counted from 1: another one, where a name before it went

    def read(self, names: dict[str, Any]) -> dict[str, Any]:
        """The names of a namespace and what they mean now, in its order."""
        after = self._after_entry(names)
        entries = [place for place, name in enumerate(after, 1) if _is_entry(name)]
        if entries:
            self._before += [name for name in after[: entries[-1]] if not _is_entry(name)]
            self._entry = after[entries[-1] - 1]
            self._place += entries[-1]
            after = after[entries[-1] :]
        return {name: names[name] for name in (*self._before, *after) if name in names}

    def _after_entry(self, names: dict[str, Any]) -> list[str]:
        """The names that follow the last entry; all, where that is not where it was."""
        if names is self._namespace:
            after = list(islice(reversed(names), max(0, len(names) - self._place + 1)))[::-1]
            if after[:1] == [self._entry]:
                return after[1:]
        self._namespace, self._before, self._place = names, [], 0
        return list(names)


def _is_entry(name: object) -> bool:
    return type(name) is str and name[:1] == "_" and name[1:].removeprefix("i").isdigit()


def names_of(
    namespace: dict[str, Any],
    outermost: FrameType | None = None,
    own: UserNames | None = None,
) -> Callable[[], dict[str, Any]]:
    """A function that tells the names visible to code of `namespace` when it is called.

    The innermost function wins. Only functions outside installed libraries count, on the stack of
    the thread that called `names_of`, and of those only what `outermost` has called. own: what
    reads the namespace, if it is a notebook's. The answer holds references: use it and let it go.
    """
    thread = threading.get_ident()

    def here() -> FrameType | None:
        return sys._current_frames().get(thread)

    def names() -> dict[str, Any]:
        known = own.read(namespace) if own is not None else namespace
        return {**known, **running_locals(here(), namespace, outermost)}

    return names


def running_locals(
    innermost: FrameType | None, namespace: Mapping[str, Any], outermost: FrameType | None = None
) -> dict[str, Any]:
    """Locals of the user's functions from `innermost` outwards to the code of the cell itself."""
    found: dict[str, Any] = {}
    for frame in outwards(innermost):
        if frame is outermost:
            break
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            if frame.f_globals is namespace:
                break
        elif not is_librarys(frame):
            found = {**locals_of(frame), **found}
    return found


def is_librarys(frame: FrameType) -> bool:
    """Whether its code is an installed library's, or what torch made of a compiled function."""
    module = frame.f_globals.get("__name__")
    made = type(module) is str and module.startswith("torch.")
    return made or frame.f_code.co_filename in LIBRARIES


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, which afterwards keeps no more than before."""
    seen = frame.f_locals
    values = dict(seen)
    # Before Python 3.13 a function's frame keeps this dict, and with it every value that the
    # function may `del` later. Empty it, unless the function has asked for locals() and holds it.
    is_functions = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_functions and isinstance(seen, dict) and sys.getrefcount(seen) <= _HELD_BY_FRAME:
        seen.clear()
    return values


def _references() -> int:
    """References to a frame's dict as `locals_of` sees them when nobody else holds it."""
    seen = sys._getframe().f_locals
    return sys.getrefcount(seen)


_HELD_BY_FRAME = _references() if sys.version_info < (3, 13) else 0
