"""The panel as one widget: its sections, what is common to them, and when they are redrawn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ipywidgets
from IPython.display import display

from gpumem_magic.panel import controls
from gpumem_magic.panel.advice import AdviceSection
from gpumem_magic.panel.cell import CellSection
from gpumem_magic.panel.desk import Desk, Draw, Section
from gpumem_magic.panel.export import ExportSection
from gpumem_magic.panel.front import Front
from gpumem_magic.panel.header import Header
from gpumem_magic.panel.live import Timer
from gpumem_magic.panel.now import NowSection
from gpumem_magic.panel.past import PastSection
from gpumem_magic.panel.predict import PredictSection
from gpumem_magic.panel.snapshot import Snapshot
from gpumem_magic.panel.state import Host
from gpumem_magic.values.report import Report

_VIEW = "application/vnd.jupyter.widget-view+json"
_PLAIN = "The gpumem_magic panel: it lives where the notebook runs; its last state stands below."
_TABS = ("Now", "Cell", "History", "Advice", "Predict")
_UNLOADED = (
    "The extension was unloaded: %load_ext gpumem_magic and %gpumem --panel open a new panel."
)


class Board:
    """The panel of one shell: one state and one set of controls, shown as often as one likes."""

    def __init__(self, host: Host) -> None:
        self.desk = desk = Desk(host)
        self.now = NowSection(desk)
        self.past = PastSection(desk)
        self.cell = CellSection(desk)
        self.advice = AdviceSection(desk)
        self.predict = PredictSection(desk)
        self.export = ExportSection(desk)
        self.sections: tuple[Section, ...] = (
            *(self.now, self.past, self.cell, self.advice, self.predict, self.export),
        )
        self.header = Header(desk, self.sections, opened=self._opened, close=self.close)
        self.snapshot = Snapshot(host.history)
        self.front = Front(_TABS, self._parts)
        self.front.on_message(self._heard)
        self.front.on_tab(desk.guarded("Opening the tab", self.redraw))
        self.root = controls.below()
        self.root.add_class("gpumem-panel")
        self.timer = Timer(self._step, lambda: desk.follower.live.running)
        self._queue: deque[Draw] = deque()
        self._seen: tuple[Report, ...] | None = None
        self._turn = self._snapshot_due = False
        self._closed = self._was_viewed = False
        desk.changed = self.redraw
        self.root._view_count = 0  # asks the front end to count
        self.root.observe(self._viewed, names="_view_count")
        desk.follower.use(host.source)
        host.observers.append(self)
        self._use_controls_if_late()
        self.redraw()

    @property
    def _parts(self) -> dict[str, Any]:
        """All controls, by where they are: "Advice.insert"."""
        places = {section.title: section for section in self.sections}
        return {
            f"{title}.{name}": part
            for title, place in {**places, "Header": self.header, "Desk": self.desk}.items()
            for name, part in vars(place).items()
            if isinstance(part, ipywidgets.DOMWidget)
        }

    def _heard(self, content: Mapping[str, Any]) -> None:
        """What the module says: that it is there, which report is meant, what the user sets."""
        acts: dict[str, Callable[[Any], None]] = {
            "hello": lambda _: self._use_front(),
            "choose": self.past.choose,
            "compare": self.past.compare,
            "set": self._set,
            "inserted": self.advice.inserted,
            "download": self.export.download,
        }
        for name, value in content.items():
            if name in acts:
                self.desk.guarded("Showing reports", partial(acts[name], value))()

    def _set(self, wish: tuple[str, str, Any]) -> None:
        """Set a control as the user wants it: its name, "value" or "index", and that."""
        name, trait, value = wish
        if trait in ("value", "index"):
            setattr(self._parts[name], trait, value)

    def _use_front(self) -> None:
        """Show the module from now on; another page with it sees the same."""
        if self._closed or self.desk.front is not None:
            return
        self.front.answer()
        self.desk.front = self.front
        self.root.children = (self.front.widget,)
        self.redraw()

    def _use_controls_if_late(self) -> None:
        if not self.root.children and self.front.late:
            self.root.children = (self.header.box, self.desk.message, self.header.columns)

    @property
    def closed(self) -> bool:
        """Whether there is nothing left to show."""
        return self._closed

    def show(self) -> None:
        """Show the panel in the output of the running cell; those shown before stay alive."""
        self.redraw()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.root.model_id}
        display({"text/plain": _PLAIN, _VIEW: view}, raw=True)  # type: ignore[no-untyped-call]
        self.snapshot.show()
        if self.desk.host.running:
            self.cell_began()
        self.timer.wake()

    def redraw(self) -> None:
        """Bring all open sections up to date at once."""
        with self.desk.quiet():
            self._seen = self.desk.state.history.reports
            for draw in self._drawings():
                draw()

    def cell_began(self) -> None:
        """Follow the cell, if anyone looks; dry runs would begin with what it changes."""
        self.desk.dry_runs.cancel("The dry runs were ended: a cell runs.")
        if self._closed or not self._is_seen():
            return
        self.desk.follower.begin(self.desk.host.source, threading.get_ident())
        self.timer.wake()

    def cell_ended(self) -> None:
        """Show what it left, piece by piece, from the panel's own thread."""
        if self._closed or not self._is_seen():
            return
        self.desk.follower.end()
        if not self._was_viewed and not _same(self.desk.state.history.reports, self._seen):
            self.snapshot.draw()  # no page: what runs the notebook listens only until the cell ends
        self.timer.wake()

    def unloaded(self) -> None:
        """Say so, and stop."""
        self._end(_UNLOADED, patience=1)

    def close(self) -> None:
        """Stop, and leave the page."""
        if self in self.desk.host.observers:
            self.desk.host.observers.remove(self)
        # A step may wait for the lock that this callback has: it must not be waited for.
        self._end("The panel is closed; %gpumem --panel opens it again.", patience=0)

    def _end(self, why: str, patience: float) -> None:
        if self._closed:
            return
        self._closed = True
        self.desk.dry_runs.cancel()
        self.timer.stop(patience)
        self._queue.clear()
        self.desk.follower.close()
        self.header.close()
        self.desk.say(why)
        self.root.children = (self.desk.message,)
        self.front.close()
        for child in (self.header.box, self.header.columns):
            _close(child)

    def _is_seen(self) -> bool:
        """Whether a view is on a page, as far as the front end tells."""
        return bool(self.root._view_count) or not self._was_viewed

    def _viewed(self, change: dict[str, object]) -> None:
        if not self._closed and change["new"] and not change["old"]:
            self._was_viewed = True
            self.timer.wake()

    def _opened(self, section: Section) -> None:
        with self.desk.quiet():
            for draw in section.pieces:
                draw()

    def _drawings(self) -> list[Draw]:
        """What is looked at; the module shows the devices in short on every tab."""
        shown = [section for section in self.sections if self.header.is_open(section)]
        if self.desk.front is not None and self.now not in shown:
            shown.append(self.now)
        return [draw for section in shown for draw in section.pieces]

    def _step(self) -> bool:
        """Send at most one message; False when there is nothing left to send."""
        with self.desk.quiet():
            if self._closed:
                return False
            try:
                return self._advance()
            except Exception as error:
                self._queue.clear()
                self.desk.say(f"The panel could not follow: {type(error).__name__}: {error}", True)
                return False

    def _advance(self) -> bool:
        if not self.root.children:
            self._use_controls_if_late()
            return True
        running = self.desk.follower.live.running
        reports = self.desk.state.history.reports
        if not running and not _same(reports, self._seen):
            self._seen = reports
            drawings = self._drawings()
            self._queue = deque(drawings)
            self._snapshot_due, self._turn = self._was_viewed, False
        self._turn = not self._turn
        if self._queue and (self._turn or not running):
            self._queue.popleft()()
        elif self._snapshot_due and not self._queue:
            self._snapshot_due = False
            self.snapshot.draw()
        elif self.desk.front is not None or self.header.is_open(self.now):
            self.now.draw()
        return running or self._snapshot_due or bool(self._queue)


def _same(reports: tuple[Report, ...], seen: tuple[Report, ...] | None) -> bool:
    return seen is not None and len(reports) == len(seen) and all(map(_is, reports, seen))


def _is(one: Report, other: Report) -> bool:
    return one is other


def _close(widget: ipywidgets.Widget) -> None:
    """Take a widget and all inside it out of kernel and page."""
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()
