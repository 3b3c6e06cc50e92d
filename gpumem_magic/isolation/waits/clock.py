"""The time of a process that does not wait for it."""

from __future__ import annotations

import math
import operator
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from gpumem_magic.sources.objects.namespaces import locals_of
from gpumem_magic.sources.stacks.frames import LIBRARIES

_SLICE = 0.01
"""Seconds of a real wait, after which the others are looked at."""
_LONG = 3600.0
"""Seconds after which a wait without an end is given up, if others only pass the time meanwhile."""

really_sleep, _monotonic = time.sleep, time.monotonic


_State = tuple[int, frozenset["int | None"]]


class Clock:
    """Until when the threads of this process wait."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._changes = 0
        self._waits: dict[int | None, tuple[float, _State | None]] = {}
        """Of a thread that waits: until when, and the state in which it has last tried in vain."""

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return _monotonic() + self.ahead

    def in_seconds(self, original: Callable[[], float]) -> Callable[[], float]:
        """Of a clock of the system, one that is as far ahead."""
        return lambda: original() + self.ahead

    def in_nanoseconds(self, original: Callable[[], int]) -> Callable[[], int]:
        """As `in_seconds`."""
        return lambda: original() + int(self.ahead * 1e9)

    def sleep(self, seconds: Any) -> None:
        """No longer than other threads are at work."""
        length = seconds if isinstance(seconds, float) else operator.index(seconds)
        if length > 0:
            self.wait(really_sleep, length)
        else:  # it may say that this is no time
            really_sleep(length)

    def of_signals(self, original: Any) -> Any:
        """Of signal.sigtimedwait, one that waits like this."""
        return lambda signals, timeout, /: self.wait(lambda part: original(signals, part), timeout)

    def wait(self, attempt: Callable[[float], Any], timeout: float | None) -> Any:
        """What `attempt(seconds)`, the real wait, gives in the end: something falsy if the time is
        over."""
        found = attempt(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        end = self.now() + (self._patience() if timeout is None else timeout)
        thread = threading.get_ident()
        self._waits[thread] = end, None
        self._changes += 1
        try:
            while not found and self.now() < end:
                state = self._state()
                if len(state[1]) == 1 and timeout is not None:
                    self._pass_until(end)
                found = attempt(max(0.0, min(_SLICE, end - self.now())))
                if not found:
                    self._waits[thread] = end, state
                    if self._is_first(end):
                        self._pass_until(end)
        finally:
            self._waits.pop(thread, None)
            self._changes += 1
        found = found or attempt(0)
        if not found and timeout is None:
            _give_up()
        return found

    def _patience(self) -> float:
        here = threading.current_thread()
        return _LONG if here is threading.main_thread() else math.inf

    def _pass_until(self, end: float) -> None:
        if end < math.inf:
            self.ahead += max(0.0, end - self.now())

    def _state(self) -> _State:
        return self._changes, threads()

    def _is_first(self, end: float) -> bool:
        """Whether all threads wait, have tried in vain as things stand, and none waits for a
        shorter time."""
        waits, state = dict(self._waits), self._state()
        in_vain = all(thread in waits and waits[thread][1] == state for thread in state[1])
        return in_vain and end <= min(until for until, _ in waits.values())


def threads() -> frozenset[int | None]:
    """The identifiers of those that run, None of one that is about to: a thread that has ended for
    `threading.enumerate` still holds what others wait for, until its last frame is gone."""
    known = threading._enumerate()  # type: ignore[attr-defined]
    return frozenset({*(thread.ident for thread in known), *sys._current_frames()})


def _give_up() -> NoReturn:
    raise NotImplementedError(
        f"{_called()} waits for something that nobody does: only threads and tasks that the cell "
        "starts run in a dry run, and nobody answers from outside"
    )


def _called() -> str:
    """What the user called, or what runs a thread."""
    name = "the cell"
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in LIBRARIES:
        code = frame.f_code
        # Python 3.10 has no co_qualname; what was replaced has the name of the original
        name = getattr(code, "co_qualname", code.co_name)
        original = locals_of(frame).get("original")
        name = f"{getattr(original, '__qualname__', name)}()"
        frame = frame.f_back
    return name
