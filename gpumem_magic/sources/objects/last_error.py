"""What the last error keeps on the device: its traceback has the variables of all functions that it
went through, until the next error comes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any, Final

from gpumem_magic.sources.objects.namespaces import locals_of
from gpumem_magic.sources.objects.owners import scan
from gpumem_magic.sources.objects.ownership import Locate, Owned

ERROR: Final = "<error>."
"""What names of such variables begin with: "<error>.forward.x"."""

_LONGEST = 200  # frames; a recursion that never ended has thousands


def kept_by_error(locate: Locate, known: Collection[int]) -> tuple[Owned, ...]:
    """Owners of storages that the error shown last leads to, but for those at `known` addresses."""
    names: dict[str, Any] = {}
    for traceback in _tracebacks():
        for name, value in _variables(traceback):
            names.setdefault(name, value)
    if not names:
        return ()
    return tuple(one for one in scan(names, (), locate) if one.address not in known)


def _tracebacks() -> Iterator[TracebackType]:
    """Of the error that was shown last, and of those that it came from."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    chain: Any = BaseException
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        seen.add(id(error))
        if (traceback := chain.__traceback__.__get__(error)) is not None:
            yield traceback
        error = chain.__cause__.__get__(error) or chain.__context__.__get__(error)


def _variables(traceback: TracebackType) -> Iterator[tuple[str, Any]]:
    here: TracebackType | None = traceback
    for _ in range(_LONGEST):
        if here is None:
            return
        frame = here.tb_frame
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # others have the notebook's own names
            for name, value in locals_of(frame).items():
                yield f"{ERROR}{frame.f_code.co_name}.{name}", value
        here = here.tb_next
