"""The names that user code can see: a namespace and the locals of its running functions."""

from __future__ import annotations

import inspect
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

LIBRARIES = tuple(
    {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(__file__).parents[2])}
)

_SHELLS_OWN = re.compile(r"_{1,3}|_i{0,3}|_i?\d+|_oh|_ih|_dh|_sh|In|Out|exit|quit|get_ipython")


def is_shells_own(name: str) -> bool:
    """Whether IPython put the name there: `_`, `Out`, `In` and their like."""
    return _SHELLS_OWN.fullmatch(name) is not None


def names_of(
    namespace: Mapping[str, Any], outermost: FrameType | None = None
) -> Callable[[], dict[str, Any]]:
    """A function that tells the names visible to code of `namespace` when it is called.

    The innermost function wins. Only functions outside installed libraries count, on the stack of
    the thread that called `names_of`, and of those only what `outermost` has called. The answer
    holds references: use it and let it go.
    """
    thread = threading.get_ident()

    def here() -> FrameType | None:
        return sys._current_frames().get(thread)

    def names() -> dict[str, Any]:
        return {**namespace, **running_locals(here(), namespace, outermost)}

    return names


def running_locals(
    frame: FrameType | None, namespace: Mapping[str, Any], outermost: FrameType | None = None
) -> dict[str, Any]:
    """Locals of the user's functions from `frame` outwards to the code of the cell itself."""
    found: dict[str, Any] = {}
    while frame is not None and frame is not outermost:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            if frame.f_globals is namespace:
                break
        elif not frame.f_code.co_filename.startswith(LIBRARIES):
            found = {**locals_of(frame), **found}
        frame = frame.f_back
    return found


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a function's frame, which afterwards keeps no more than before."""
    seen = frame.f_locals
    values = dict(seen)
    # Before Python 3.13 the frame keeps this dict, and with it every value that the function may
    # `del` later. Empty it, unless the function itself asked for locals() and holds it.
    if isinstance(seen, dict) and sys.getrefcount(seen) <= _HELD_BY_FRAME:
        seen.clear()
    return values


def _references() -> int:
    """References to a frame's dict as `locals_of` sees them when nobody else holds it."""
    seen = sys._getframe().f_locals
    return sys.getrefcount(seen)


_HELD_BY_FRAME = _references() if sys.version_info < (3, 13) else 0
