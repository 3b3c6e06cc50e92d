"""One line that follows the memory while a long cell runs, written by a thread of its own."""

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
    """From `start` to `stop` shows what `level` says, on `publisher`, in one updating output.

    interval: seconds between updates. The thread dies with the process and never blocks the cell.
    """

    def __init__(self, level: Callable[[], Level], publisher: Publisher, interval: float) -> None:
        self._level = level
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
        highest = 0
        wait = DELAY
        while not self._ended.wait(wait):
            wait = self._interval
            level = self._level()
            highest = max(highest, level.allocated or 0)
            if not self._ended.is_set():
                self._publish(_line(level, highest, time.monotonic() - self._began))

    def _publish(self, text: str) -> None:
        data = {"text/plain": text, "text/html": _as_html(text)}
        self._publisher.publish(data, transient=self._transient, update=self._shown)
        self._shown = True


def _line(level: Level, highest: int, seconds: float) -> str:
    return (
        f"{seconds:.0f} s · {format_bytes(level.allocated)} allocated, "
        f"{format_bytes(highest)} at the most so far · {format_bytes(level.reserved)} reserved"
    )


def _as_html(text: str) -> str:
    style = "font-variant-numeric:tabular-nums"  # digits that do not dance
    return f'<span style="{style}">{html.escape(text)}</span>' if text else ""
