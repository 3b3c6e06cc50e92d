"""Ctrl-C and other signals, which must neither be swallowed by a callback nor end our own
arithmetic half-way."""

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
        "sources/collected.py": ("_died", "catch_up"),
        "sources/accelerator/storages.py": ("_settle",),
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
    """Stands before the signals' handlers between `install` and `remove`: of Ctrl-C, of timers that
    end what takes too long, of all that are written in Python. What comes at a wrong moment is sent
    again.

    Python swallows exceptions in callbacks of weak references, where our storages die, and an
    allocator that is left half-way has wrong books. An `except` in such code would not do: a signal
    is also handled before its first instruction.
    standing: the one that handles them now; signals are the process's. held: what waits to be sent
    again. handled: how many came through so far and raised something; raised: of what
    kind the last of that was.
    """

    standing: ClassVar[Interrupts | None] = None
    handled: ClassVar[int] = 0
    raised: ClassVar[type[BaseException]] = KeyboardInterrupt

    def __init__(self) -> None:
        self.held: set[int] = set()
        self._before: dict[int, Callable[..., Any]] = {}
        self._replaced: list[tuple[str, object, object]] = []

    def install(self) -> None:
        """Stand before the handlers that there are, and those that are set from now on, unless
        another of these does; only in the main thread.

        `signal.getsignal` and `signal.signal` go on speaking of those: asyncio.run, for one, sets a
        handler of its own only over Python's.
        """
        if Interrupts.standing is not None or not _in_main_thread():
            return
        handlers = ((number, _signal.getsignal(number)) for number in range(1, signal.NSIG))
        self._before = {number: handler for number, handler in handlers if _may_raise(handler)}
        self.held.clear()
        Interrupts.standing = self
        for number in self._before:
            _set_handler(number, self._handle)
        self._replace("getsignal", self._seen(signal.getsignal))
        self._replace("signal", self._handed_on(signal.signal))

    def remove(self) -> None:
        """Leave it to those again, unless user code has put others in our place. What waits to be
        sent again is theirs now."""
        if Interrupts.standing is not self or not _in_main_thread():
            return
        Interrupts.standing = None
        for name, covered, ours in self._replaced:
            if getattr(signal, name) is ours:
                setattr(signal, name, covered)
        self._replaced.clear()
        held, before = tuple(self.held), dict(self._before)
        self.held.clear()
        for number, handler in before.items():
            if _signal.getsignal(number) == self._handle:
                _set_handler(number, handler)
        for number in held:
            before[number](number, None)

    @classmethod
    def stand_aside(cls) -> None:
        """Leave the handlers of this process to themselves, from here on: it has one thread, and
        what happens in it is dropped with it."""
        if cls.standing is not None:
            cls.standing.held.clear()
            cls.standing.remove()
        cls.standing = cls()  # so that no other stands before them

    def handle_held(self) -> None:
        """Handle what is held back, if this is the moment for it."""
        if _in_main_thread():
            for number in tuple(self.held):
                self._handle(number, sys._getframe(1))

    def take_held(self) -> bool:
        """Whether Ctrl-C was held back, which is the caller's now."""
        held = signal.SIGINT in self.held
        self.held.discard(signal.SIGINT)
        return held

    def _replace(self, name: str, ours: object) -> None:
        self._replaced.append((name, getattr(signal, name), ours))
        setattr(signal, name, ours)

    def _seen(self, getsignal: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(getsignal)
        def seen(signalnum: int) -> Any:
            handler = getsignal(signalnum)
            return self._before[signalnum] if handler == self._handle else handler

        return seen

    def _handed_on(self, set_handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(set_handler)
        def handed_on(signalnum: int, handler: Any) -> Any:
            stands = _may_raise(handler)
            before = set_handler(signalnum, self._handle if stands else handler)
            if before == self._handle:
                before = self._before[signalnum]
            if stands:
                self._before[signalnum] = handler
            return before

        return handed_on

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not _is_wrong_moment(frame):
            self.held.discard(number)
            try:
                self._before[number](number, frame)
            except BaseException as error:
                Interrupts.handled += 1
                Interrupts.raised = type(error)  # no more: it would keep what its frames have
                raise
        elif number not in self.held:
            self.held.add(number)
            if len(self.held) == 1:
                _thread.start_new_thread(self._send_again, ())

    def _send_again(self) -> None:
        main = threading.main_thread().ident
        time.sleep(_PAUSE)
        while self.held and Interrupts.standing is self:
            for number in self.held.copy():
                if hasattr(signal, "pthread_kill") and main is not None:
                    signal.pthread_kill(main, number)
                else:
                    _thread.interrupt_main(signal.Signals(number))
            time.sleep(_PAUSE)


def _may_raise(handler: Any) -> bool:
    """asyncio's own does nothing: what it is for has happened by the time it is called, and would
    happen once more."""
    return callable(handler) and getattr(handler, "__module__", None) != "asyncio.unix_events"


def _set_handler(number: int, handler: Any) -> None:
    """That of Python; the system goes on calling it with the same flags, or what C code has set."""
    action = read_action(number)
    _signal.signal(number, handler)
    set_action(number, action)


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
