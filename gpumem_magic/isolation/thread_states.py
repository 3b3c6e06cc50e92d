"""What only a thread of Python holds: its `threading.local` data, its context variables, the
exception that it handles. In a forked child, which has no other threads, that dies as soon as it
begins: a temporary folder would be removed for real."""

from __future__ import annotations

import contextvars
import ctypes
import functools
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

_WORDS = 48
"""Of CPython's struct of a thread, in which the places of what is looked for lie."""


def held_by_threads() -> Iterator[object]:
    """It, of all threads: who keeps it keeps it alive."""
    yield sys._current_exceptions()
    try:
        python, places = _load_python(), _places()
    except (AttributeError, OSError, ValueError):
        return  # no CPython whose threads can be looked into
    thread = python.PyInterpreterState_ThreadHead(python.PyInterpreterState_Get())
    while thread:
        for place in places:
            address = ctypes.c_void_p.from_address(thread + place).value
            if address:
                yield ctypes.cast(address, ctypes.py_object).value
        thread = python.PyThreadState_Next(thread)


@functools.lru_cache(maxsize=1)
def _load_python() -> Any:
    """Python's functions, apart from `ctypes.pythonapi`, which is the user's as well."""
    python = ctypes.PyDLL(None)
    for name in ("PyInterpreterState_Get", "PyThreadState_Get", "PyThreadState_GetDict"):
        getattr(python, name).restype = ctypes.c_void_p
    for name in ("PyInterpreterState_ThreadHead", "PyThreadState_Next"):
        function = getattr(python, name)
        function.restype, function.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    return python


@functools.lru_cache(maxsize=1)
def _places() -> tuple[int, ...]:
    """Where the struct of a thread has its dictionary, what stands for it in `threading.local`, and
    its context: found out with this one's, as they differ from version to version."""
    context = contextvars.Context()
    local = threading.local()
    local.data = None
    inside = [each for each in gc.get_referents(local) if isinstance(each, (dict, set))]
    watched = [key for each in inside for key in each if isinstance(key, weakref.ref)]
    places = (
        _place_of(_load_python().PyThreadState_GetDict()),
        *(_place_of(id(key())) for key in watched),  # since Python 3.13 not in the dictionary
        context.run(lambda: _place_of(id(context))),
    )
    return tuple(place for place in places if place is not None)


def _place_of(address: int) -> int | None:
    words = (ctypes.c_size_t * _WORDS).from_address(_load_python().PyThreadState_Get())
    size = ctypes.sizeof(ctypes.c_size_t)
    return next((size * at for at, word in enumerate(words) if word == address), None)
