"""Whose memory grows from one run of a cell to the next: numbers only, nothing is kept alive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from gpumem_magic.values.inventory import Growing, Holding


@dataclass(frozen=True, slots=True)
class Held:
    """What one name holds: bytes, and where the last of it was allocated, In[cell]:line."""

    size: int
    newest: tuple[int, int] | None = None

    @property
    def line(self) -> int | None:
        """The line of that cell."""
        return self.newest[1] if self.newest else None


def held_by_name(holdings: Iterable[Holding]) -> dict[str, Held]:
    """What each variable holds, by whatever way; other holders by their whole names."""
    found: dict[str, Held] = {}
    for holding in holdings:
        name = re.split(r"[.\[:]", holding.name, maxsplit=1)[0] or holding.name
        known = found.get(name, Held(0))
        places = [place for place in (known.newest, _newest(holding)) if place is not None]
        found[name] = Held(known.size + holding.size, max(places, default=None))
    return found


def _newest(holding: Holding) -> tuple[int, int] | None:
    if holding.cell is not None and holding.line is not None:
        return holding.cell, holding.line
    return holding.newest


class Growth:
    """Remembers what names held at the end of each run of each cell. runs: how many to compare."""

    def __init__(self, runs: int = 3) -> None:
        self._runs = runs
        self._seen: dict[str, list[Mapping[str, Held]]] = {}

    def note(self, cell: str, held: Mapping[str, Held]) -> None:
        """A run of `cell` (its text, or whatever tells it from others) has ended."""
        runs = self._seen.setdefault(cell, [])
        runs.append(dict(held))
        del runs[: -self._runs]

    def growing(self, cell: str) -> tuple[Growing, ...]:
        """Names whose bytes grew in each of the last runs of the cell, the fastest first; none
        before there were enough runs."""
        runs = self._seen.get(cell, [])
        if len(runs) < self._runs:
            return ()
        found = []
        for name, held in runs[-1].items():
            sizes = tuple(run[name].size if name in run else 0 for run in runs)
            if all(before < after for before, after in pairwise(sizes)):
                found.append(Growing(name, sizes, held.line))
        return tuple(sorted(found, key=lambda growing: -growing.growth))
