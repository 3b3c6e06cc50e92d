"""Where events come from; the only room that knows torch. `choose_source` picks the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpumem_magic.events import Cell, Recording
from gpumem_magic.trace.findings import Level


class Source(Protocol):
    """One way to learn of a device's memory events. `start` and `stop` bracket one cell."""

    def enter(self) -> None:
        """Called before every cell, measured or not (the virtual GPU enters its modes here)."""

    def leave(self) -> None:
        """Called after every cell, measured or not."""

    def level(self) -> Level:
        """What is allocated, reserved and used right now; cheap enough for a live display."""

    def start(self, namespaces: Callable[[], Mapping[str, Any]]) -> None:
        """Begin recording; `namespaces()` gives the names that may own tensors, whenever asked."""

    def stop(self, cell: Cell, cells: Mapping[str, Cell], error: BaseException | None) -> tuple[Recording, ...]:
        """End recording; one Recording per device that the cell used, the most used first."""

    def close(self) -> None:
        """Restore everything that the source replaced."""
