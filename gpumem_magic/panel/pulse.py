"""The one thread of the panel: it lives while a cell runs or something is left to be shown."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

INTERVAL = 0.3
"""Seconds between two steps, and so between two messages, at least: never four in a second."""

SHARE = 0.005
"""Of the time, at most this part is spent on steps; where one takes long, the next comes later."""

LONGEST = 2.0
"""Seconds between two steps at most, whatever they cost."""


class Pulse:
    """Calls `step` again and again, from `wake` until it returns False. Errors end it silently:
    `step` has to tell of its own. thrifty: whether there is someone whose time a step takes."""

    def __init__(self, step: Callable[[], bool], thrifty: Callable[[], bool]) -> None:
        self._step = step
        self._thrifty = thrifty
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._again = False

    @property
    def beating(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    def wake(self) -> None:
        """See to it that a step comes."""
        with self._lock:
            self._again = True
            if self._thread is None and not self._stopped.is_set():
                # ipykernel keeps the message that widgets answer to in a context variable
                context = contextvars.copy_context()
                self._thread = threading.Thread(
                    target=context.run, args=(self._beat,), name="gpumem-panel", daemon=True
                )
                self._thread.start()

    def stop(self, patience: float = 1.0) -> None:
        """End for good; waits so many seconds for a step that is under way."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    def _beat(self) -> None:
        wait = INTERVAL
        while not self._stopped.wait(wait):
            self._again = False
            spent = time.thread_time()
            more = self._step()
            cost = time.thread_time() - spent if self._thrifty() else 0.0
            wait = min(max(INTERVAL, cost / SHARE), LONGEST)
            with self._lock:
                if not (more or self._again):
                    self._thread = None
                    return
        self._thread = None
