"""How reports reach the user: rich output in a notebook, plain text in a terminal."""

from __future__ import annotations

import contextlib
import contextvars
import html
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from gpumem_magic.renderers import mimebundle, post_mortem_bundle
from gpumem_magic.renderers.advice import offered
from gpumem_magic.renderers.report import summary_line
from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import Level
from gpumem_magic.values.report import Report


class Text(Protocol):
    """What can be shown in a notebook as it is, and in a terminal as text."""

    def text(self) -> str:
        """The whole of it in 80 columns."""


def show_brief(shell: InteractiveShell, report: Report) -> None:
    """Show the line of `--on`; of an out-of-memory error all that there is to say."""
    if report.oom:
        show_post_mortem(shell, report)
    else:
        rules = ", ".join(dict.fromkeys(advice.rule for advice in offered(report.advice)))
        tell(summary_line(report) + (f" · advice: {rules}" if rules else ""))


def show_report(shell: InteractiveShell, report: Report, plot: bool) -> None:
    """Show a report in full, the figure only if `plot`."""
    if is_rich(shell):
        display(mimebundle(report, plot), raw=True)  # type: ignore[no-untyped-call]
    else:
        tell(report.text())  # a terminal needs no figure, and so no matplotlib


def show_post_mortem(shell: InteractiveShell, report: Report) -> None:
    """Show what a report says of an out-of-memory error, without the rest of it."""
    if is_rich(shell):
        display(post_mortem_bundle(report), raw=True)  # type: ignore[no-untyped-call]
    else:
        tell(post_mortem_bundle(report)["text/plain"])


def show_text(shell: InteractiveShell, found: Text) -> None:
    """Show a history or a comparison."""
    if is_rich(shell):
        display(found)  # type: ignore[no-untyped-call]
    else:
        tell(found.text())


def is_rich(shell: InteractiveShell) -> bool:
    """Whether HTML is shown."""
    formatter = shell.display_formatter
    return formatter is not None and "text/html" in formatter.active_types


def has_one_page(shell: Any) -> bool:
    """Whether outputs and widgets are in one page, as in JupyterLab and Notebook 7. What runs
    notebooks without a page would save the widgets that it is given. These front ends tell which
    cell it is that runs; others do not."""
    parent: Any = getattr(shell, "get_parent", dict)()
    return "cellId" in parent.get("metadata", {})


def tell(text: str) -> None:
    """Print an answer."""
    print(text)  # noqa: T201


def warn(text: str) -> None:
    """Print one line about the extension itself, apart from what the user's code prints.

    Where that fails, as with a closed stream or a full disk, nobody can be told.
    """
    with contextlib.suppress(Exception):
        print(f"gpumem_magic: {text}", file=sys.stderr)  # noqa: T201


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
