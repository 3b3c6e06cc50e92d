"""Ctrl-C, which must neither be swallowed by a callback nor end our own arithmetic half-way."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` wraps: no enum is made of a handler
import _thread
import contextlib
import functools
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

from gpumem_magic.sources.signal_actions import read_action, set_action
from gpumem_magic.sources.stacks.frames import outwards

_PACKAGE = Path(__file__).parents[1]
_INDIVISIBLE = tuple(
    str(_PACKAGE / place)
    for place in (
        *("allocator", "sources/interrupts.py", "virtual/gpu.py", "virtual/storages.py"),
        *("virtual/random.py", "virtual/kernels", "virtual/workspaces"),
    )
)
"""Files and folders of code that runs to its end: none of it calls the user's, and it is brief."""

_STEPS = {
    str(_PACKAGE / file): frozenset(names)
    for file, names in {
        "virtual/tracker.py": ("_make", "function_called", "function_returned"),
        "sources/accelerator/storages.py": ("_settle", "_died"),
        "isolation/child.py": ("fork",),
        "magics/display.py": ("start", "stop"),
        "magics/monitor.py": ("enter", "leave", "_start_recording", "_drop_recording"),
    }.items()
}
"""Functions in other files that run to their end."""

_BRACKETS = (
    *(contextlib.__file__, weakref.__file__, weakref.WeakSet.add.__code__.co_filename),
    *("torch/overrides.py", "torch/utils/_python_dispatch.py"),
    *("IPython/core/events.py", "IPython/core/interactiveshell.py", "traitlets/traitlets.py"),
    *("ipykernel/ipkernel.py", "matplotlib/transforms.py"),
    *(str(_PACKAGE / "magics" / file) for file in ("mark.py", "faults.py", "monitor.py")),
)
"""Ends of files that are no place for an interrupt while nothing else runs in them: what begins and
ends `with` statements (torch's modes, and ours that are generators), what is called when an object
dies or garbage is collected, from where no error comes out, and what leads from the user's code to
ours and back."""

_COLLECTING = "_clean_thread_parent_frames"
"""What ipykernel does, also through `threading`, when garbage is collected: as above."""

_PAUSE = 1e-3
"""Seconds until an interrupt is sent again; what cannot be divided takes less."""


class Interrupts:
    """Handles SIGINT between `install` and `remove`: what comes at a wrong moment is sent again.

    Python swallows exceptions in callbacks of weak references, where our storages die, and an
    allocator that is left half-way has wrong books. An `except` in such code would not do: a signal
    is also handled before its first instruction.
    standing: the one that handles it now; signals are the process's. handled: how many came through
    so far and raised something.
    """

    standing: ClassVar[Interrupts | None] = None
    handled: ClassVar[int] = 0

    def __init__(self) -> None:
        self.is_held = False
        self._before: Any = None
        self._replaced: list[tuple[str, object, object]] = []

    def install(self) -> None:
        """Stand before the handler that there is, if there is one, and no other of these does; only
        in the main thread.

        `signal.getsignal` and `signal.signal` go on speaking of that one: asyncio.run, for one,
        sets a handler of its own only over Python's.
        """
        if Interrupts.standing is not None or not _in_main_thread():
            return
        handler = _signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._before, self.is_held, Interrupts.standing = handler, False, self
            _set_handler(self._handle)
            self._replace("getsignal", self._seen(signal.getsignal))
            self._replace("signal", self._handed_on(signal.signal))

    def remove(self) -> None:
        """Leave it to that one again, unless user code has put another in our place. An interrupt
        that waits to be sent again is that one's now."""
        if Interrupts.standing is not self or not _in_main_thread():
            return
        Interrupts.standing = None
        for name, covered, ours in self._replaced:
            if getattr(signal, name) is ours:
                setattr(signal, name, covered)
        self._replaced.clear()
        held = self.take_held()
        if _signal.getsignal(signal.SIGINT) == self._handle:
            _set_handler(self._before)
        if held:
            self._before(signal.SIGINT, None)

    def handle_held(self) -> None:
        """Handle what is held back, if this is the moment for it."""
        if self.is_held and _in_main_thread():
            self._handle(signal.SIGINT, sys._getframe(1))

    def take_held(self) -> bool:
        """Whether one was held back, which is the caller's now."""
        held, self.is_held = self.is_held, False
        return held

    def _replace(self, name: str, ours: object) -> None:
        self._replaced.append((name, getattr(signal, name), ours))
        setattr(signal, name, ours)

    def _seen(self, getsignal: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(getsignal)
        def seen(signalnum: int) -> Any:
            handler = getsignal(signalnum)
            return self._before if handler == self._handle else handler

        return seen

    def _handed_on(self, set_handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(set_handler)
        def handed_on(signalnum: int, handler: Any) -> Any:
            ours = signalnum == signal.SIGINT and _signal.getsignal(signalnum) == self._handle
            if not (ours and callable(handler)):
                before = set_handler(signalnum, handler)
                return self._before if ours else before
            before, self._before = self._before, handler
            return before

        return handed_on

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not _is_wrong_moment(frame):
            self.is_held = False
            try:
                self._before(number, frame)
            except BaseException:
                Interrupts.handled += 1
                raise
        elif not self.is_held:
            self.is_held = True
            _thread.start_new_thread(self._send_again, ())

    def _send_again(self) -> None:
        main = threading.main_thread().ident
        time.sleep(_PAUSE)
        while self.is_held and Interrupts.standing is self:
            if hasattr(signal, "pthread_kill") and main is not None:
                signal.pthread_kill(main, signal.SIGINT)
            else:
                _thread.interrupt_main()
            time.sleep(_PAUSE)


def _set_handler(handler: Any) -> None:
    """That of Python; the system goes on calling it with the same flags, or what C code has set."""
    action = read_action(signal.SIGINT)
    _signal.signal(signal.SIGINT, handler)
    set_action(signal.SIGINT, action)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_wrong_moment(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == "<string>":
        frame = frame.f_back  # generated, such as a dataclass's constructor: its caller counts
    if frame is not None and frame.f_code.co_filename.endswith(_BRACKETS):
        return True
    return any(_is_indivisible(each.f_code) for each in outwards(frame))


def _is_indivisible(code: CodeType) -> bool:
    file = code.co_filename
    if code.co_name == _COLLECTING:
        return True
    return file.startswith(_INDIVISIBLE) or code.co_name in _STEPS.get(file, ())
