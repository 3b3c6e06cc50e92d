"""What a section of the panel is: a box that can be opened, and the pieces that draw it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from gpumem_magic.panel.desk import Desk

Draw = Callable[[], None]


class Section(ABC):
    """A part of the panel with a title."""

    title: ClassVar[str]
    box: Any

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.state = desk.state

    @property
    @abstractmethod
    def pieces(self) -> tuple[Draw, ...]:
        """Functions that each bring one control up to date: one message to the browser each."""
