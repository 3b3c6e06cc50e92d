"""What an error keeps on the device: its traceback has the variables of all functions that it went
through, of the last one until the next comes, of one that is handled until that is over."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any, Final

from gpumem_magic.sources.failures import ran_out
from gpumem_magic.sources.objects.namespaces import is_librarys, locals_of
from gpumem_magic.sources.objects.owners import scan
from gpumem_magic.sources.objects.ownership import Locate, Owned
from gpumem_magic.sources.stacks.frames import went_through
from gpumem_magic.sources.stacks.tracebacks import chain_of

ERROR: Final = "<error>."
"""What names of such variables begin with: "<error>.forward.x"; of a library's function only that
is told, "<error>.deepcopy()"."""

_LONGEST = 200  # frames; a recursion that never ended has thousands


def last_error() -> object:
    """The error shown last, None where there was none."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def handled(error: object) -> BaseException | None:
    """What was being handled when memory ran out, as `error` says; None where nothing was."""
    return next(islice(chain_of(ran_out(error)), 1, None), None)


def kept_by(error: object, locate: Locate) -> tuple[Owned, ...]:
    """Owners of storages that an error, and those that it came from, lead to."""
    names: dict[str, Any] = {}
    frames = (frame for one in chain_of(error) for frame, _ in went_through(one))
    for frame in _functions(frames):
        call = "()" if is_librarys(frame) else ""
        for name, value in locals_of(frame).items():
            names.setdefault(f"{ERROR}{frame.f_code.co_name}{call}.{name}", value)
    owned = scan(names, (), locate) if names else ()
    return tuple(one._replace(name=_without_insides(one.name or "")) for one in owned)


def _without_insides(name: str) -> str:
    """The name; of a library's variable, such as the memo of deepcopy(), only the function."""
    function, inside, _ = name.partition("().")
    return f"{function}()" if inside else name


def locals_at(error: BaseException | None) -> dict[str, Any]:
    """The variables of the user's functions that the error went through; the innermost one wins."""
    found: dict[str, Any] = {}
    for frame in _functions(frames_of(error)):
        if not is_librarys(frame):
            found.update(locals_of(frame))
    return found


def _functions(frames: Iterator[FrameType]) -> Iterator[FrameType]:
    """Frames but for those that have the notebook's own names."""
    for frame in islice(frames, _LONGEST):
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            yield frame


def frames_of(error: object) -> Iterator[FrameType]:
    """The frames that the error went through, the outermost first, and those of the errors that it
    came from, as far as to the one that memory ran out."""
    ended = ran_out(error)
    for one in chain_of(error):
        yield from (frame for frame, _ in went_through(one))
        if one is ended:
            return
