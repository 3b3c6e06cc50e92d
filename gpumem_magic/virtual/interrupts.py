"""Ctrl-C, which must neither be swallowed by a callback of ours nor end our own arithmetic
half-way."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import overrides
from torch.utils import _python_dispatch

_PACKAGE = Path(__file__).parents[1]
_INDIVISIBLE = tuple(
    str(_PACKAGE / place)
    for place in (
        *("allocator", "virtual/storages.py", "virtual/random.py"),
        *("virtual/kernels", "virtual/workspaces"),
    )
)
"""Code that runs to its end: none of it calls the user's, and all of it is brief."""

_BRACKETS = frozenset({contextlib.__file__, overrides.__file__, _python_dispatch.__file__})
"""What begins and ends `with` statements, when nothing else runs in it: torch's modes, and ours
that are generators, would be begun and not ended."""

_PAUSE = 1e-3
"""Seconds until an interrupt is sent again; what cannot be divided takes less."""


class Interrupts:
    """Handles SIGINT between `install` and `remove`: what comes at a wrong moment is sent again.

    Python swallows exceptions in callbacks of weak references, where our storages die, and an
    allocator that is left half-way has wrong books. An `except` in such code would not do: a signal
    is also handled before its first instruction.
    indivisible: code that runs to its end, besides that of whole files.
    """

    def __init__(self, indivisible: Iterable[Callable[..., Any]] = ()) -> None:
        self._codes: frozenset[CodeType] = frozenset(f.__code__ for f in indivisible)
        self._before: Any = None

    def install(self) -> None:
        """Stand before the handler that there is, if there is one; only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and handler != self._handle:
            self._before = handler
            signal.signal(signal.SIGINT, self._handle)

    def remove(self) -> None:
        """Leave it to that one again, unless user code has put another in our place."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_wrong_moment(frame):
            _thread.start_new_thread(_send_again, (threading.main_thread(),))
        else:
            self._before(number, frame)

    def _is_wrong_moment(self, frame: FrameType | None) -> bool:
        if frame is not None and frame.f_code.co_filename in _BRACKETS:
            return True
        while frame is not None:
            code = frame.f_code
            if code in self._codes or code.co_filename.startswith(_INDIVISIBLE):
                return True
            frame = frame.f_back
        return False


def _send_again(main: threading.Thread) -> None:
    time.sleep(_PAUSE)
    if hasattr(signal, "pthread_kill") and main.ident is not None:
        signal.pthread_kill(main.ident, signal.SIGINT)
    else:
        _thread.interrupt_main()
