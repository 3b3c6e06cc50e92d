"""Locks, what is made of them, and pools of threads."""

from __future__ import annotations

import _queue
import _thread
import queue
import threading
import weakref
from typing import Any

from gpumem_magic.isolation.arrivals import MULTIPROCESSING, Arrivals
from gpumem_magic.isolation.telling import Effects
from gpumem_magic.isolation.waits.clock import Clock, really_sleep, threads

_ENDING = 0.01
"""Seconds after which is looked again whether a thread has ended that has nothing left to run."""

_new_lock = threading.Lock


def install_locks(effects: Effects, clock: Clock, arrivals: Arrivals) -> None:
    """Locks, and all that is made of them (Condition, Event, Queue, Future, Thread.join)."""

    def make_acquire(original: Any) -> Any:
        def acquire(lock: Any, blocking: bool = True, timeout: float = -1) -> bool:
            if not blocking or (timeout < 0 and timeout != -1):
                return bool(original(lock, blocking, timeout))
            limit = None if timeout == -1 else timeout
            return bool(clock.wait(lambda part: original(lock, True, part), limit))

        return acquire

    def make_restore(_: Any) -> Any:
        def restore(lock: Any, state: tuple[int, int]) -> None:
            for _ in range(state[0]):
                lock.acquire()

        return restore

    for kind in (type(_new_lock()), type(threading.RLock())):
        acquire = make_acquire(kind.acquire)
        effects.put(kind, "acquire", acquire)
        effects.put(kind, "__enter__", lambda lock, acquire=acquire: acquire(lock))
    effects.replace(type(threading.RLock()), "_acquire_restore", make_restore)

    def make_get(original: Any) -> Any:
        def get(found: Any, block: bool = True, timeout: float | None = None) -> Any:
            def attempt(part: float) -> list[Any]:
                try:
                    return [original(found, part > 0, part or None)]
                except queue.Empty:
                    return []

            if not block or (timeout is not None and timeout < 0):
                return original(found, block, timeout)
            items = clock.wait(attempt, timeout)
            if not items:
                raise queue.Empty
            return items[0]

        return get

    effects.replace(_queue.SimpleQueue, "get", make_get)
    _install_joins(effects, clock)
    for package in MULTIPROCESSING:
        arrivals.expect(f"_{package}", lambda module: setattr(module, "SemLock", SharedSemaphore))
    _forget_left_behind(effects)


def _install_joins(effects: Effects, clock: Clock) -> None:
    """A thread without a frame is about to end, and is waited for whatever the time."""

    def make_join(original: Any) -> Any:
        def join(handle: Any, timeout: float | None = None) -> None:
            def has_ended(part: float) -> bool:
                original(handle, max(part, _ENDING))
                while not handle.is_done() and handle.ident not in threads():
                    original(handle, _ENDING)
                return bool(handle.is_done())

            clock.wait(has_ended, None if timeout is None or timeout < 0 else timeout)

        return join

    effects.replace(getattr(_thread, "_ThreadHandle", None), "join", make_join)  # from Python 3.13

    def make_wait(original: Any) -> Any:
        def wait(thread: Any, block: bool = True, timeout: float = -1) -> None:
            original(thread, block, timeout)
            while block and thread._tstate_lock and thread.ident not in threads():
                really_sleep(_ENDING)
                original(thread, False)

        return wait

    effects.replace(threading.Thread, "_wait_for_tstate_lock", make_wait)  # up to Python 3.12


def _forget_left_behind(effects: Effects) -> None:
    """Threads that were left behind still seem to wait for a Condition: they are not notified."""
    ours: weakref.WeakSet[Any] = weakref.WeakSet()

    def new_lock() -> Any:
        lock = _new_lock()
        ours.add(lock)
        return lock

    def make_notify(original: Any) -> Any:
        def notify(condition: Any, n: int = 1) -> None:
            for waiter in [w for w in condition._waiters if w not in ours]:
                condition._waiters.remove(waiter)
            original(condition, n)

        return notify

    threading._allocate_lock = new_lock  # type: ignore[attr-defined]
    effects.replace(threading.Condition, "notify", make_notify)


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


def install_pools(effects: Effects, arrivals: Arrivals) -> None:
    """A pool of threads from before the fork has none; it makes new ones."""
    from concurrent.futures import ThreadPoolExecutor

    def check_running(original: Any, pool: Any) -> None:
        if pool._state == "RUN" and not pool._worker_handler.is_alive():
            pool._terminate.cancel()
            pool.__init__(pool._processes, pool._initializer, pool._initargs)
        original(pool)

    for package in MULTIPROCESSING:
        arrivals.expect(
            f"{package}.pool",
            lambda module: effects.wrap(module.Pool, "_check_running", check_running),
        )

    def make(original: Any) -> Any:
        def submit(pool: Any, *args: Any, **kwargs: Any) -> Any:
            if not all(thread.is_alive() for thread in pool._threads):
                pool._threads, pool._work_queue = set(), queue.SimpleQueue()
                pool._idle_semaphore = threading.Semaphore(0)
                pool._shutdown_lock = threading.Lock()
            return original(pool, *args, **kwargs)

        return submit

    effects.replace(ThreadPoolExecutor, "submit", make)
