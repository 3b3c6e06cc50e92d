"""Ctrl-C, which must neither be swallowed by a callback of ours nor end our own arithmetic
half-way."""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import overrides
from torch.utils import _python_dispatch

from gpumem_magic.virtual.patches import Patches

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
        self._patches = Patches()
        self._is_installed = False

    def install(self) -> None:
        """Stand before the handler that there is, if there is one; only in the main thread.

        `signal.getsignal` and `signal.signal` go on speaking of that one: asyncio.run, for one,
        sets a handler of its own only over Python's.
        """
        if threading.current_thread() is not threading.main_thread() or self._is_installed:
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._before, self._is_installed = handler, True
            getsignal, set_handler = signal.getsignal, signal.signal
            set_handler(signal.SIGINT, self._handle)
            self._patches.set(signal, "getsignal", self._seen(getsignal))
            self._patches.set(signal, "signal", self._handed_on(set_handler, getsignal))

    def remove(self) -> None:
        """Leave it to that one again, unless user code has put another in our place."""
        if threading.current_thread() is not threading.main_thread() or not self._is_installed:
            return
        self._is_installed = False
        self._patches.restore()
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    def _seen(self, getsignal: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(getsignal)
        def seen(signalnum: int) -> Any:
            handler = getsignal(signalnum)
            return self._before if handler == self._handle else handler

        return seen

    def _handed_on(
        self, set_handler: Callable[..., Any], getsignal: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(set_handler)
        def handed_on(signalnum: int, handler: Any) -> Any:
            ours = signalnum == signal.SIGINT and getsignal(signalnum) == self._handle
            if not (ours and callable(handler)):
                before = set_handler(signalnum, handler)
                return self._before if ours else before
            before, self._before = self._before, handler
            return before

        return handed_on

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
