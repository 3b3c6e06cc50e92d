"""Tells below a cell which names grew in each of its last runs: `%gpucheck --watch`."""

from __future__ import annotations

from typing import Any

from gpumem_magic.events import Cell
from gpumem_magic.inventory import Growing
from gpumem_magic.magics.display import tell
from gpumem_magic.magics.shell_places import shell_roots
from gpumem_magic.renderers.wording import visible
from gpumem_magic.sources import Source
from gpumem_magic.sources.holders import take_inventory
from gpumem_magic.sources.holders.growth import Growth, held_by_name
from gpumem_magic.units import format_bytes, format_change

_NAMES = 3


class GrowthWatch:
    """Looks at the memory after each cell while it is active; a cell is known by its text."""

    def __init__(self) -> None:
        self._growth: Growth | None = None

    @property
    def active(self) -> bool:
        """Whether cells are watched."""
        return self._growth is not None

    def switch(self, on: bool) -> None:
        """Begin, from the next run of each cell on, or end and forget what was seen."""
        if on != self.active:
            self._growth = Growth() if on else None

    def look(self, shell: Any, source: Source, cell: Cell) -> None:
        """Say which names grew, now that another run of `cell` has ended."""
        if self._growth is None:
            return
        inventory = take_inventory(source, shell.user_ns, shell_roots(shell))
        self._growth.note(cell.source, held_by_name(inventory.holdings))
        growing = self._growth.growing(cell.source)
        for one in growing[:_NAMES]:
            tell(growth_line(one, cell))
        if len(growing) > _NAMES:
            tell(f"... and {len(growing) - _NAMES} more names grew")


def growth_line(growing: Growing, cell: Cell) -> str:
    """Who grew by how much over how many runs, and the line that adds, if it is known."""
    sizes = growing.sizes
    by = format_change(growing.growth).lstrip("+")
    said = (
        f"{visible(growing.name)} grew in each of the last {len(sizes)} runs of this cell, "
        f"by {by} to {format_bytes(sizes[-1])}"
    )
    rows = cell.source.splitlines()
    if growing.line is None or not 0 < growing.line <= len(rows):
        return said
    return f"{said}: line {growing.line}, {visible(rows[growing.line - 1].strip())}"
