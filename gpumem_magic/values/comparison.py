"""Two reports side by side: what changed, by level, by line, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumem_magic.values.answer import Answer
from gpumem_magic.values.findings import Line
from gpumem_magic.values.report import Report


@dataclass(frozen=True, slots=True)
class Difference:
    """A size in both reports, in bytes; None where unknown."""

    name: str
    first: int | None
    second: int | None

    @property
    def change(self) -> int | None:
        """Bytes that the second has more; None where either is unknown."""
        if self.first is None or self.second is None:
            return None
        return self.second - self.first


@dataclass(frozen=True, slots=True)
class LineDifference:
    """A line of the cells by its source text; None where a cell does not have it."""

    source: str
    first: Line | None
    second: Line | None

    @property
    def allocated(self) -> Difference:
        """Bytes allocated by the line; a missing line allocates nothing."""
        return Difference(self.source, *(row.allocated if row else 0 for row in self._both))

    @property
    def net(self) -> Difference:
        """Bytes that the line left behind."""
        return Difference(self.source, *(row.net if row else 0 for row in self._both))

    @property
    def peak(self) -> Difference:
        """The highest level while it ran; None where it did not run."""
        return Difference(self.source, *(row.peak if row else None for row in self._both))

    @property
    def _both(self) -> tuple[Line | None, Line | None]:
        return self.first, self.second


@dataclass(frozen=True, slots=True)
class Comparison(Answer):
    """What changed from the report `first` to `second`; `numbers` are theirs in the history.

    levels: peak and after, allocated and reserved, and what is kept. categories: at the peak.
    lines: matched by their text, in the order of the second cell. frames, modules: at the peak, by
    the line of code and the Python module that asked for it, without what is the same, the largest
    change first; () where the events of a report are not known. sources: the text of the lines of
    `frames`, by their names.
    """

    first: Report
    second: Report
    numbers: tuple[int, int]
    levels: tuple[Difference, ...]
    lines: tuple[LineDifference, ...]
    categories: tuple[Difference, ...]
    frames: tuple[Difference, ...] = ()
    modules: tuple[Difference, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
