"""What all parts of the panel work with: one lock, one place for messages, callbacks that may
fail."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import ipywidgets

from gpumem_magic.panel import controls
from gpumem_magic.panel.dry_runs import DryRuns
from gpumem_magic.panel.front import Front
from gpumem_magic.panel.live import Follower
from gpumem_magic.panel.state import Host, State
from gpumem_magic.renderers import wording
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED
from gpumem_magic.renderers.html import ROOT, element

BUSY = "A cell is running: press again when it has ended."


class Desk:
    """Made in the thread that runs cells; callbacks may come in others."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.state = State(host.history)
        self.follower = Follower(host.shell.user_ns)
        self.lock = threading.RLock()
        self.message = ipywidgets.HTML()
        self.front: Front | None = None  # as long as the core controls serve
        self.changed: Callable[[], None] = lambda: None
        self.dry_runs = DryRuns(host, self.say, self.guarded)
        self._thread = threading.get_ident()
        self._quiet = False

    def say(self, text: str, alarm: bool = False) -> None:
        """Show one message in place of the last; an empty one takes it away."""
        edge = f"border-left:4px solid {ALARM if alarm else ALLOCATED};padding:2px 8px"
        style = f"{ROOT};{edge};overflow-wrap:anywhere" if text else ""
        sign = "\u26a0 " if alarm else ""
        self.message.value = element("div", f"{sign}{text}"[:2000], role="status", style=style)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What is set within is no wish of the user's: no callback acts on it."""
        with self.lock:
            before, self._quiet = self._quiet, True
            try:
                yield
            finally:
                self._quiet = before

    def on_click(self, button: Any, what: str, act: Callable[[], object]) -> None:
        """Have `act` called when the button is pressed."""
        guarded = self.guarded(what, act)
        button.on_click(lambda _: guarded())

    def on_click_alone(self, button: Any, what: str, act: Callable[[], object]) -> None:
        """The same for what acts on the device: in the thread of cells, while no cell runs."""
        guarded = self.guarded(what, act)

        def start() -> None:
            if self.host.running:
                self.say(BUSY)
            else:
                guarded()

        button.on_click(lambda _: self._in_shell(start))

    def on_change(self, widget: Any, trait: str, what: str, act: Callable[[], object]) -> None:
        """Have `act` called when the user changes a trait of the widget."""
        guarded = self.guarded(what, act)
        widget.observe(lambda _: guarded(), names=trait)

    def on_change_alone(
        self, widget: Any, trait: str, what: str, act: Callable[[], object]
    ) -> None:
        """The same in the thread of cells; it has to cope with a running cell itself."""
        guarded = self.guarded(what, act)

        def change(_: object) -> None:
            if not self._quiet:
                self._in_shell(guarded)

        widget.observe(change, names=trait)

    def guarded(self, what: str, act: Callable[[], object]) -> Callable[[], None]:
        """`act` as a callback: one at a time, and errors are told as those of `what`."""

        def run() -> None:
            with self.lock:
                if self._quiet:
                    return
                try:
                    act()
                except KeyboardInterrupt:
                    self.say(f"{what} was interrupted.")
                except Exception as error:
                    told = type(error) is ValueError  # ours, whose text is a sentence
                    text = str(error) if told else f"{type(error).__name__}: {error}"
                    self.say(f"{what} failed: {wording.visible(text)}", alarm=True)

        return run

    def _in_shell(self, act: Callable[[], None]) -> None:
        """Some kernels handle a widget's messages in a thread beside that of the cells."""
        loop = getattr(getattr(self.host.shell, "kernel", None), "io_loop", None)
        if threading.get_ident() == self._thread or loop is None:
            act()
        else:
            loop.add_callback(act)


Draw = Callable[[], None]


class Section(ABC):
    """A part of the panel with a title."""

    title: ClassVar[str]
    box: Any

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.state = desk.state

    def framed(self, *children: Any) -> Any:
        """The controls of the section below its title."""
        title = controls.html()
        style = f"{ROOT};font-weight:600;margin-top:8px"
        name = {"role": "heading", "aria-level": "3"}
        title.value = element("div", self.title, style=style, **name)
        return controls.below(title, *children)

    @property
    @abstractmethod
    def pieces(self) -> tuple[Draw, ...]:
        """Functions that each bring one control up to date: one message to the browser each."""


def cancel_button(desk: Desk) -> Any:
    """Ends the dry runs that the panel has asked for; seen while there are any."""
    button = controls.button("Cancel", "End the dry runs")
    controls.show(button, False)
    desk.dry_runs.changed.append(lambda running: controls.show(button, running))
    desk.on_click(button, "Cancelling", desk.dry_runs.cancel)
    return button
