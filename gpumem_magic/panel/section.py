"""What a section of the panel is: a box that can be opened, and the pieces that draw it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from gpumem_magic.panel import controls
from gpumem_magic.panel.desk import Desk
from gpumem_magic.renderers.markup import ROOT, element

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
