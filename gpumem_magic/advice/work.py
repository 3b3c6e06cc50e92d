"""What a rule may look at: its work is counted, so that advice is as quick on any cell."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category

_PER_NODE: Final = 8
"""Times that a rule may look at each node and each storage; no rule needs more on any example."""

_AT_LEAST: Final = 300_000
"""Looks that a rule has on any cell: a fraction of a second."""

MOST: Final = 2_000_000
"""Looks that a rule has on the largest of cells: some three seconds."""

COLUMN: Final = 1 / 32
"""What numpy takes for one element of a column, as a share of what Python takes for one node."""


class TooMuchWorkError(Exception):
    """A rule has looked at more than it may."""


class Work:
    """Counts what a rule looks at, and raises TooMuchWorkError beyond `limit`; None: no limit."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.spent = 0.0

    def begin(self, size: int) -> None:
        """Count from 0 again, for a cell of so many nodes and storages."""
        self.limit = min(_AT_LEAST + _PER_NODE * size, MOST)
        self.spent = 0.0

    def spend(self, looks: float) -> None:
        """Count so many looks. Raises TooMuchWorkError."""
        self.spent += looks
        if self.limit is not None and self.spent > self.limit:
            raise TooMuchWorkError


@dataclass(frozen=True, slots=True, eq=False)
class CountedLifetimes(Lifetimes):
    """Lifetimes as rules see them: what they ask for is counted, and what all ask for is kept."""

    work: Work = field(default_factory=Work)
    kept: dict[str, NDArray[np.int64]] = field(init=False, default_factory=dict)

    @classmethod
    def of_all(cls, lives: Lifetimes, work: Work) -> CountedLifetimes:
        """The same storages; the columns are shared."""
        columns = {one.name: getattr(lives, one.name) for one in fields(Lifetimes)}
        return cls(**columns, work=work)

    # Zero-argument super() fails in a class with slots: dataclass() makes a second one of it.

    def of(self, *categories: Category) -> NDArray[np.bool_]:
        """Count, and see Lifetimes."""
        self.work.spend(len(self) * COLUMN)
        return Lifetimes.of(self, *categories)

    def born_under(self, filename: str, lines: Container[int]) -> NDArray[np.bool_]:
        """Count, and see Lifetimes."""
        self.work.spend(len(self.stacks) + len(self) * COLUMN)
        return Lifetimes.born_under(self, filename, lines)

    def levels(self, without: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Count, and see Lifetimes; read-only where it is of all storages, which is kept."""
        if without is None and "levels" in self.kept:
            return self.kept["levels"]
        self.work.spend((self.events + 4 * len(self)) * COLUMN)
        found = Lifetimes.levels(self, without)
        if without is None:
            found.flags.writeable = False
            self.kept["levels"] = found
        return found

    def bytes(self, storages: NDArray[np.bool_]) -> int:
        """Count, and see Lifetimes."""
        self.work.spend(len(self) * COLUMN)
        return Lifetimes.bytes(self, storages)
