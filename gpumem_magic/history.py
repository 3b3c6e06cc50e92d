"""The reports of a notebook, in order: kept, shown, compared, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path

from gpumem_magic.renderers.formats.files import save_reports
from gpumem_magic.renderers.formats.json import loads
from gpumem_magic.renderers.history import history_html, history_text
from gpumem_magic.trace.lifetimes import Living
from gpumem_magic.values.comparison import Comparison, compare
from gpumem_magic.values.report import Report

KEPT = 30
"""Reports of which it is known what was alive when; of older ones this is forgotten."""


class History:
    """Every report that was appended or loaded; numbers count from 1."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._living: list[tuple[Report, Living]] = []

    @property
    def reports(self) -> tuple[Report, ...]:
        """All reports, the oldest first."""
        return tuple(self._reports)

    def append(self, report: Report) -> None:
        """Add a report as the latest."""
        self._reports.append(report)

    def clear(self) -> None:
        """Forget all reports."""
        self._reports.clear()
        self._living.clear()

    def remember(self, report: Report, living: Living | None) -> None:
        """Keep what was alive when in the cell of a report, for the last of them."""
        if living is not None:
            self._living = [*self._living[1 - KEPT :], (report, living)]

    def living(self, report: Report) -> Living | None:
        """What was alive when in the cell of a report; None where it is not known any more."""
        return next((living for one, living in self._living if one is report), None)

    def show(self, number: int) -> Report:
        """Report `number`. Raises IndexError that says which numbers there are."""
        if 1 <= number <= len(self._reports):
            return self._reports[number - 1]
        if not self._reports:
            raise IndexError(f"there is no report {number}: the history is empty")
        raise IndexError(f"there is no report {number}: the history has 1 to {len(self._reports)}")

    def compare(self, first: int, second: int) -> Comparison:
        """What changed from report `first` to report `second`. Raises IndexError as `show`."""
        return compare(self.show(first), self.show(second), (first, second))

    def save(self, path: str | PathLike[str]) -> None:
        """Write all reports as .json, .csv, .html or .txt, or their peaks as .png or .svg.

        Raises ValueError for another suffix; a file that was there stays whole if anything fails.
        """
        save_reports(self._reports, path)

    def load(self, path: str | PathLike[str]) -> None:
        """Append the reports of a saved .json.

        Raises ValueError that says what is wrong with the file, or OSError; the history is then as
        it was.
        """
        path = Path(path)
        if path.suffix.lower() != ".json":
            raise ValueError(f"{path}: reports are loaded from .json files")
        try:
            self._reports += loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def text(self) -> str:
        """One line for each report, for a terminal of 80 columns."""
        return history_text(self._reports)

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __getitem__(self, number: int) -> Report:
        return self.show(number)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<History of {len(self._reports)} reports>"

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": history_html(self._reports)}
