"""What runs in a browser that has anywidget: the panel as our ES module shows it, another view of
the controls, and what lets the figures of reports answer."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import traitlets

from gpumem_magic.history import History
from gpumem_magic.panel.controls import MOST
from gpumem_magic.renderers.figure.interactive import (
    BLOCKS,
    POINTS,
    course_json,
    has_course,
    key_of,
    module_text,
)
from gpumem_magic.values.report import Report

PATIENCE = 1.0
"""Seconds that the browser has to answer before the core controls are shown."""

BETTER = (
    "These are plain controls. For charts that answer the mouse and tables that sort: "
    "pip install anywidget, then restart the kernel and load the page again."
)

_KNOWN = 100
"""Of so many reports, the latest that were shown, the page is told that they can be asked for."""


class Front:
    """One widget of the ES module. It shows `parts`, controls by their names, and what is given to
    `show`; `tab` is what the user looks at, empty as long as no browser has answered."""

    def __init__(self, tabs: tuple[str, ...], parts: Mapping[str, Any]) -> None:
        ids = {name: part.model_id for name, part in parts.items()}
        self.widget = _widget(tabs, ids)
        self.tab = ""
        self._until = time.monotonic() + PATIENCE

    @property
    def late(self) -> bool:
        """Whether no browser has answered in time; nobody can where there is no anywidget."""
        return not self.tab and (self.widget is None or time.monotonic() > self._until)

    def on_message(self, act: Callable[[Mapping[str, Any]], None]) -> None:
        """Have `act` called with what the module says: {"hello": ...} when a page has it."""
        if self.widget is not None:
            self.widget.on_msg(lambda _widget, content, _buffers: act(content))

    def on_tab(self, act: Callable[[], None]) -> None:
        """Have `act` called when the user looks at another tab."""

        def turned(change: Mapping[str, Any]) -> None:
            if self.tab:
                self.tab = str(change["new"])
                act()

        if self.widget is not None:
            self.widget.observe(turned, names="tab")

    def answer(self) -> None:
        """A browser has the module."""
        assert self.widget is not None
        self.tab = self.tab or self.widget.tab

    def show(self, name: str, value: Any) -> None:
        """Show a value: "now", "rows" or "course"; one message."""
        setattr(self.widget, name, value)

    def send(self, content: Mapping[str, Any], *data: bytes) -> None:
        """Have the module do something: "insert" a cell, "download" the data under a name."""
        self.widget.send(content, list(data))

    def close(self) -> None:
        """Take it out of the page."""
        if self.widget is not None:
            self.widget.close()


def _widget(tabs: tuple[str, ...], ids: Mapping[str, str]) -> Any:
    """The panel's widget."""
    traits = {
        "tabs": traitlets.List(list(tabs)).tag(sync=True),
        "tab": traitlets.Unicode(tabs[0]).tag(sync=True),
        "parts": traitlets.Dict(dict(ids)).tag(sync=True),
        "now": traitlets.Dict().tag(sync=True),
        "rows": traitlets.Dict().tag(sync=True),
        "course": traitlets.Bytes().tag(sync=True),
    }
    return _made(module_text(), traits)


def _made(module: str, traits: Mapping[str, Any]) -> Any:
    """A widget of an ES module; None where anywidget is not installed."""
    try:
        from anywidget import AnyWidget
    except ImportError:
        return None
    return type("Screen", (AnyWidget,), {"_esm": module, **traits})()


def packed(report: Report | None) -> bytes:
    """The course of a cell for the module, compressed, in as much detail as a message has room
    for; empty where there is none."""
    if report is None or not has_course(report):
        return b""
    for part in range(8):
        data = zlib.compress(course_json(report, POINTS >> part, BLOCKS >> part).encode())
        if len(data) <= MOST:
            return data
    return b""


class Figures:
    """One widget of a kernel, which is nowhere to be seen: its module puts a button upon pictures.
    The course of a cell is sent when somebody presses it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._keys: deque[str] = deque(maxlen=_KNOWN)
        self.widget = _made(module_text("below.js"), {"known": traitlets.Unicode().tag(sync=True)})
        if self.widget is not None:
            self.widget.on_msg(lambda _widget, content, _buffers: self._answer(content))

    def shown(self, report: Report) -> None:
        """The picture of a report is on the page."""
        if self.widget is not None and has_course(report):
            self._keys.append(key_of(report))
            self.widget.known = " ".join(self._keys)

    def close(self) -> None:
        """Leave pictures behind."""
        if self.widget is not None:
            self.widget.close()

    def _answer(self, content: Mapping[str, Any]) -> None:
        """What the module asks for: itself, or a course; an empty one where the report is gone."""
        if "module" in content:
            text = zlib.compress(module_text().encode(), 9)
            self.widget.send({"module": True}, [text])
        elif "course" in content:
            key = content["course"]
            found = (one for one in reversed(self._history.reports) if key_of(one) == key)
            self.widget.send({"course": key}, [packed(next(found, None))])
