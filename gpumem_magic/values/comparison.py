"""Two reports side by side: what changed, by level, by line, by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpumem_magic.renderers import wording
from gpumem_magic.values.findings import Line
from gpumem_magic.values.recording import Category
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
class Comparison:
    """What changed from the report `first` to `second`; `numbers` are theirs in the history.

    levels: peak and after, allocated and reserved, and what is kept. categories: at the peak.
    lines: matched by their text, in the order of the second cell.
    """

    first: Report
    second: Report
    numbers: tuple[int, int]
    levels: tuple[Difference, ...]
    lines: tuple[LineDifference, ...]
    categories: tuple[Difference, ...]

    def text(self) -> str:
        """The comparison for a terminal of 80 columns."""
        from gpumem_magic.renderers.comparison import comparison_text

        return comparison_text(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from gpumem_magic.renderers.comparison import comparison_html

        return {"text/plain": self.text(), "text/html": comparison_html(self)}


def compare(first: Report, second: Report, numbers: tuple[int, int] = (1, 2)) -> Comparison:
    """What changed from `first` to `second`."""
    return Comparison(
        first, second, numbers, _levels(first, second), _lines(first, second), _kinds(first, second)
    )


def _levels(first: Report, second: Report) -> tuple[Difference, ...]:
    named = [
        Difference(
            f"{moment} {size}", *(getattr(getattr(r, moment), size) for r in (first, second))
        )
        for moment in ("peak", "after")
        for size in ("allocated", "reserved")
    ]
    return (*named, Difference("kept", wording.kept(first), wording.kept(second)))


def _kinds(first: Report, second: Report) -> tuple[Difference, ...]:
    pairs = [(kind, _held(first, kind), _held(second, kind)) for kind in Category]
    return tuple(Difference(kind.value, a, b) for kind, a, b in pairs if a or b)


def _held(report: Report, kind: Category) -> int | None:
    """Bytes of `kind` at the peak; None where nothing says what the peak was made of."""
    known = report.at_peak or report.peak.allocated == 0
    return report.at_peak.get(kind, 0) if known else None


def _lines(first: Report, second: Report) -> tuple[LineDifference, ...]:
    """Equal lines pair up in order; those that only the first cell has come last."""
    left: dict[str, list[Line]] = {}
    for line in first.lines:
        left.setdefault(wording.line_text(line), []).append(line)
    pairs = []
    for line in second.lines:
        source = wording.line_text(line)
        rest = left.get(source)
        pairs.append(LineDifference(source, rest.pop(0) if rest else None, line))
    gone = (line for lines in left.values() for line in lines)
    return (*pairs, *(LineDifference(wording.line_text(line), line, None) for line in gone))
