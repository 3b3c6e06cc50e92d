"""Waiting takes no time: where everything in the process waits, its clock is set forward.

Threads that ran before the fork are not in the process. What only they could end is an error.
"""

from __future__ import annotations

import asyncio
import math
import operator
import queue
import re
import select
import selectors
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from multiprocessing import synchronize
from typing import Any, NoReturn

from gpumem_magic.isolation.effects.telling import Effects, Libraries

_SLICE = 0.01
"""Seconds of a real wait, after which the others are looked at."""
_LONG = 3600.0
"""Seconds after which a wait without an end is given up, if others only pass the time meanwhile."""
_OTHER_LOOP = re.compile(r"(attached|bound) to a different (event )?loop")

_sleep, _monotonic, _new_lock = time.sleep, time.monotonic, threading.Lock


class _Clock:
    """The time of this process, and until when its threads wait."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._ends: dict[int, float] = {}
        self._changes = 0

    def now(self) -> float:
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
            self.wait(_sleep, length)
        else:  # it may say that this is no time
            _sleep(length)

    def wait(self, attempt: Callable[[float], Any], timeout: float | None) -> Any:
        """What `attempt(seconds)`, the real wait, gives in the end: something falsy if the time is
        over."""
        found = attempt(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        end = self.now() + (self._patience() if timeout is None else timeout)
        thread = threading.get_ident()
        self._ends[thread] = end
        self._changes += 1
        try:
            while not found and self.now() < end:
                seen = self._changes
                if threading.active_count() == 1:
                    self._pass_until(end)
                found = attempt(max(0.0, min(_SLICE, end - self.now())))
                if not found and seen == self._changes and self._is_first(end):
                    self._pass_until(end)
        finally:
            self._ends.pop(thread, None)
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

    def _is_first(self, end: float) -> bool:
        """Whether all threads wait, and none for a shorter time."""
        ends = dict(self._ends)
        waiting = all(thread.ident in ends for thread in threading.enumerate())
        return waiting and end <= min(ends.values())


def _give_up() -> NoReturn:
    raise NotImplementedError(
        f"{_called()} waits for something that nobody does: only threads and tasks that the cell "
        "starts run in a dry run, and nobody answers from outside"
    )


def _called() -> str:
    """What the user called, or what runs a thread."""
    name, libraries = "the cell", Libraries()
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in libraries:
        code = frame.f_code
        name = f"{getattr(code, 'co_qualname', code.co_name)}()"  # Python 3.10 has no co_qualname
        frame = frame.f_back
    return name


def install_waiting_effects(effects: Effects) -> None:
    """Replace what waits, and the clocks that tell how long."""
    clock = _Clock()
    effects.put(time, "sleep", clock.sleep)
    for name in ("time", "monotonic", "perf_counter"):
        effects.replace(time, name, clock.in_seconds)
        effects.replace(time, f"{name}_ns", clock.in_nanoseconds)
    _install_conditions(effects, clock)
    synchronize._multiprocessing.SemLock = SharedSemaphore  # type: ignore[attr-defined]
    _install_selecting(effects, clock)
    _install_pools(effects)
    _keep_loop()


def _install_conditions(effects: Effects, clock: _Clock) -> None:
    """Condition, and what is made of it (Event, Semaphore, Queue, Future); Thread.join."""

    class Waiter:
        """The lock that a waiting thread holds on to until it is notified."""

        def __init__(self) -> None:
            self._lock = _new_lock()
            self.release = self._lock.release

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if not blocking:
                return self._lock.acquire(False)
            seconds = None if timeout < 0 else timeout
            return bool(clock.wait(lambda part: self._lock.acquire(True, part), seconds))

    def make_notify(original: Any) -> Any:
        def notify(condition: Any, n: int = 1) -> None:
            for waiter in [w for w in condition._waiters if not isinstance(w, Waiter)]:
                condition._waiters.remove(waiter)  # of a thread that was left behind
            original(condition, n)

        return notify

    def make_join(original: Any) -> Any:
        def join(thread: threading.Thread, timeout: float | None = None) -> None:
            def ended(seconds: float) -> bool:
                original(thread, seconds)
                return not thread.is_alive()

            clock.wait(ended, timeout)

        return join

    threading._allocate_lock = Waiter  # type: ignore[attr-defined]
    # the one of C waits on its own
    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined,misc]
    effects.replace(threading.Condition, "notify", make_notify)
    effects.replace(threading.Thread, "join", make_join)


class SharedSemaphore:
    """What multiprocessing makes locks and semaphores of (Modules/_multiprocessing/semaphore.c in
    CPython), for the threads of one process: none that other processes know is to be had."""

    SEM_VALUE_MAX = 2**31 - 1
    handle, name = 0, None

    def __init__(self, kind: int, value: int, maxvalue: int, *name: Any, **unlink: Any) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self._is_recursive = kind == 0
        self._free = threading.Semaphore(value)
        self._held, self._owner = 0, 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Whether it was to be had, within `timeout` seconds."""
        if not (self._is_recursive and self._is_mine()):
            limit = max(timeout, 0) if block and timeout is not None else None
            if not self._free.acquire(block, limit):
                return False
        self._held, self._owner = self._held + 1, threading.get_ident()
        return True

    def release(self) -> None:
        """Raises AssertionError or ValueError for what nobody has acquired."""
        if self._is_recursive and not self._is_mine():
            raise AssertionError("attempt to release recursive lock not owned by thread")
        if not self._is_recursive and self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._held -= 1
        if not (self._is_recursive and self._held):
            self._free.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        return self._free._value

    def _is_zero(self) -> bool:
        return self._get_value() == 0


def _install_selecting(effects: Effects, clock: _Clock) -> None:
    """Files and sockets, and with them event loops."""

    def make_method(original: Any) -> Any:
        def wait(selector: Any, timeout: float | None = None) -> Any:
            return clock.wait(lambda part: original(selector, part), timeout)

        return wait

    def make_select(original: Any) -> Any:
        def wait(read: Any, write: Any, other: Any, timeout: Any = None, /) -> Any:
            found: list[Any] = [*original(read, write, other, 0)]
            if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
                return original(read, write, other, timeout)

            def attempt(seconds: float) -> bool:
                found[:] = original(read, write, other, seconds)
                return any(found)

            clock.wait(attempt, timeout)
            return tuple(found)

        return wait

    effects.replace(select, "select", make_select)
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector"):
        effects.replace(getattr(selectors, name, None), "select", make_method)


def _install_pools(effects: Effects) -> None:
    """A pool of threads from before the fork has none; it makes new ones."""
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import RUN, ThreadPool

    def make_checking(original: Any) -> Any:
        def check_running(pool: Any) -> None:
            if pool._state == RUN and not pool._worker_handler.is_alive():
                pool._terminate.cancel()
                pool.__init__(pool._processes, pool._initializer, pool._initargs)
            original(pool)

        return check_running

    effects.replace(ThreadPool, "_check_running", make_checking)

    def make(original: Any) -> Any:
        def submit(pool: Any, *args: Any, **kwargs: Any) -> Any:
            if not all(thread.is_alive() for thread in pool._threads):
                pool._threads, pool._work_queue = set(), queue.SimpleQueue()
                pool._idle_semaphore = threading.Semaphore(0)
                pool._shutdown_lock = threading.Lock()
            return original(pool, *args, **kwargs)

        return submit

    effects.replace(ThreadPoolExecutor, "submit", make)


def run_coroutine(coroutine: Coroutine[Any, Any, object]) -> object:
    """What a coroutine returns, in an event loop of its own: the notebook's does not go on.

    Raises NotImplementedError for one that waits for what never comes.
    """
    _leave_loop()
    loop = asyncio.SelectorEventLoop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except NotImplementedError:
        if task.done():
            raise
        raise _never(f"it is in {_awaited(coroutine)}") from None
    except RuntimeError as error:
        if not _OTHER_LOOP.search(str(error)):
            raise
        raise _never(str(error)) from None


def _keep_loop() -> None:
    """As in the notebook its loop seems to run, which a fork forgets: tasks can be made for it.

    Where nest_asyncio lets asyncio.run go on with it, there is another one instead.
    """
    if hasattr(asyncio, "_nest_patched"):
        _leave_loop()
        asyncio.set_event_loop(asyncio.SelectorEventLoop())
        return
    for loop in getattr(asyncio.tasks, "_current_tasks", ()):  # Python 3.14 has none
        if loop._thread_id == threading.get_ident():
            asyncio._set_running_loop(loop)


def _leave_loop() -> None:
    """Let this thread believe that no event loop runs in it, and no task."""
    loop = asyncio._get_running_loop()
    if loop is None:
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)


def _awaited(coroutine: Any) -> str:
    """The innermost coroutine that does not go on."""
    inner = coroutine
    while inner is not None and hasattr(inner, "cr_await"):
        coroutine, inner = inner, inner.cr_await
    return str(coroutine.__qualname__)


def _never(what: str) -> NotImplementedError:
    return NotImplementedError(
        "`await` waits for something that never comes: only tasks that the cell starts run in a "
        f"dry run, not the notebook's own event loop, and nobody answers from outside ({what})"
    )
