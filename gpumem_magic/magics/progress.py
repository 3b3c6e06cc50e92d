"""One line that tells how far a long cell is, written by a thread of its own."""

from __future__ import annotations

import contextlib
import contextvars
import html
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpumem_magic.trace.findings import Level
from gpumem_magic.units import format_bytes

DELAY = 1.0  # seconds before the first line: a short cell shows none
SHORTEST = 0.25  # seconds between two updates: at most four a second
PATIENCE = 0.5  # seconds that the end of a cell waits for an update under way


class Publisher(Protocol):
    """What IPython's display publishers offer."""

    def publish(
        self, data: Mapping[str, str], *, transient: Mapping[str, str], update: bool
    ) -> Any:
        """Send one output, or replace the one of the same display_id."""


class Progress:
    """From `start` to `stop` shows what `say(seconds)` gives, in one output of `publisher`.

    interval: seconds between updates. The thread dies with the process and never blocks the cell.
    """

    def __init__(self, say: Callable[[float], str], publisher: Publisher, interval: float) -> None:
        self._say = say
        self._publisher = publisher
        self._interval = max(interval, SHORTEST)
        self._transient = {"display_id": f"gpumem-{uuid.uuid4().hex}"}
        self._ended = threading.Event()
        self._shown = False
        # ipykernel keeps the message that outputs answer to in a context variable
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._follow,), name="gpumem-progress", daemon=True
        )

    def start(self) -> None:
        """Begin to follow; nothing is shown for the first second."""
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End, and empty the line if there was one; never waits long for an update under way."""
        self._ended.set()
        self._thread.join(PATIENCE)
        if self._shown:
            self._publish("")

    def _follow(self) -> None:
        with contextlib.suppress(Exception):  # no line is better than a traceback from a thread
            self._update_until_ended()

    def _update_until_ended(self) -> None:
        wait = DELAY
        while not self._ended.wait(wait):
            wait = self._interval
            text = self._say(time.monotonic() - self._began)
            if not self._ended.is_set():
                self._publish(text)

    def _publish(self, text: str) -> None:
        data = {"text/plain": text, "text/html": _as_html(text)}
        self._publisher.publish(data, transient=self._transient, update=self._shown)
        self._shown = True


def level_line(level: Callable[[], Level]) -> Callable[[float], str]:
    """What follows the memory: `level()` now, and the highest of all that it said so far."""
    highest = 0

    def say(seconds: float) -> str:
        nonlocal highest
        now = level()
        highest = max(highest, now.allocated or 0)
        return (
            f"{seconds:.0f} s · {format_bytes(now.allocated)} allocated, "
            f"{format_bytes(highest)} at the most so far · {format_bytes(now.reserved)} reserved"
        )

    return say


def _as_html(text: str) -> str:
    style = "font-variant-numeric:tabular-nums"  # digits that do not dance
    return f'<span style="{style}">{html.escape(text)}</span>' if text else ""
