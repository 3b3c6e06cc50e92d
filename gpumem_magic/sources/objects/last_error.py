"""What the last error keeps on the device: its traceback has the variables of all functions that it
went through, until the next error comes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any, Final

from gpumem_magic.sources.objects.namespaces import is_librarys, locals_of
from gpumem_magic.sources.objects.owners import scan
from gpumem_magic.sources.objects.ownership import Locate, Owned
from gpumem_magic.sources.stacks.tracebacks import chain_of

ERROR: Final = "<error>."
"""What names of such variables begin with: "<error>.forward.x"."""

_LONGEST = 200  # frames; a recursion that never ended has thousands


def kept_by_error(locate: Locate) -> tuple[Owned, ...]:
    """Owners of storages that the error shown last leads to."""
    names: dict[str, Any] = {}
    for frame in _functions(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)):
        for name, value in locals_of(frame).items():
            names.setdefault(f"{ERROR}{frame.f_code.co_name}.{name}", value)
    return tuple(scan(names, (), locate)) if names else ()


def locals_at(error: BaseException | None) -> dict[str, Any]:
    """The variables of the user's functions that the error went through; the innermost one wins."""
    found: dict[str, Any] = {}
    for frame in _functions(error):
        if not is_librarys(frame):
            found.update(locals_of(frame))
    return found


def _functions(error: object) -> Iterator[FrameType]:
    """Frames that the error went through, but for those that have the notebook's own names."""
    for frame in islice(frames_of(error), _LONGEST):
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            yield frame


def frames_of(error: object) -> Iterator[FrameType]:
    """The frames that the error went through, the outermost first, and those of the errors that it
    came from."""
    raised: Any = BaseException.__traceback__
    for one in chain_of(error):
        traceback = raised.__get__(one)
        while traceback is not None:
            yield traceback.tb_frame
            traceback = traceback.tb_next
