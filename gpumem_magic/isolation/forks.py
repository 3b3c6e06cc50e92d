"""Code of the user and of libraries that a fork would run, in the parent and in a child that is not
walled in yet."""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from gpumem_magic.isolation.thread_states import held_by_threads

_LOCKS = (_thread.LockType, _thread.RLock)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What a child does not do before it is walled in. handlers: what is to be called in it after a
    fork. collects: whether garbage is collected, and so dies. kept: what would die with the threads
    that it does not have."""

    handlers: tuple[Callable[[], object], ...] = ()
    collects: bool = True
    kept: tuple[object, ...] = ()

    def release(self) -> None:
        """Called in the child once nothing gets out of it."""
        if self.collects:
            gc.enable()
        for handler in self.handlers:
            with contextlib.suppress(BaseException):  # os.fork only tells of it
                handler()


@contextlib.contextmanager
def hold_back() -> Iterator[HeldBack]:
    """Within, a fork calls none but Python's own of what `os.register_at_fork` was given, nothing
    dies, as garbage or with other threads, and nothing is traced. The child does not leave it."""
    lists, collects = _lists(), gc.isenabled()
    traced_by, profiled_by = sys.gettrace(), sys.getprofile()
    were = [list(each) for each in lists]
    own = [list(filter(_is_pythons, were_there)) for were_there in were]
    after = tuple(each for each in (were[-1] if were else ()) if not _is_pythons(each))
    gc.disable()
    for each, kept in zip(lists, own, strict=True):
        each[:] = kept
    sys.settrace(None)
    if callable(profiled_by):  # one of C is not, and could not be put back
        sys.setprofile(None)
    try:
        yield HeldBack(after, collects, tuple(held_by_threads()))
    finally:
        for each, kept, were_there in zip(lists, own, were, strict=True):
            each[:] = were_there + each[len(kept) :]  # another thread may have added some
        if collects:
            gc.enable()
        sys.settrace(traced_by)
        if callable(profiled_by):
            sys.setprofile(profiled_by)


@functools.lru_cache(maxsize=1)
def _lists() -> tuple[list[Any], ...]:
    """Where Python keeps what is called before a fork, after it in the parent, and in the child;
    nothing where `gc.freeze` has hidden them. It takes 40 ms."""
    marks = tuple(FunctionType(_nothing.__code__, {}) for _ in range(3))
    os.register_at_fork(before=marks[0], after_in_parent=marks[1], after_in_child=marks[2])
    found = [each for each in gc.get_referrers(*marks) if type(each) is list]
    lists = [each for mark in marks for each in found if each and each[-1] is mark]
    for each in lists:
        each.pop()
    return tuple(lists) if len(lists) == len(marks) else ()


def _nothing() -> None:
    pass


def _is_pythons(handler: object) -> bool:
    """Locks are taken before a fork, so that none is held by a thread that the child has not."""
    if isinstance(handler, MethodType):
        return handler.__self__ is random._inst
    if isinstance(handler, FunctionType):
        name = str(handler.__globals__.get("__name__"))  # __module__ is that of what it wraps
        if name.partition(".")[0] not in sys.stdlib_module_names:
            return False
        return getattr(sys.modules.get(name), "__dict__", None) is handler.__globals__
    return isinstance(handler, BuiltinMethodType) and isinstance(handler.__self__, _LOCKS)
