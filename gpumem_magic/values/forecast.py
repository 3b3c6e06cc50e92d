"""Predictions of one cell side by side: on several cards, or the largest value for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from gpumem_magic.renderers.forecast import (
    cards_html,
    cards_text,
    largest_html,
    largest_text,
    largest_to_dict,
)
from gpumem_magic.renderers.formats.files import save_cards, save_largest
from gpumem_magic.renderers.formats.json import all_to_dict
from gpumem_magic.values.report import Report


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest whole number for the variable `name` with which a cell fits the card.

    value: that number; 0 where even 1 runs out of memory. report: the cell predicted with it (None
    for 0), next_report: with the next number, out of memory. runs: dry runs made. exact: whether
    both were really run and differ so; otherwise `value` is the largest that was seen to fit, and
    next_report is the smallest that was seen not to, or None. notes: sentences for the user.
    """

    name: str
    value: int
    report: Report | None
    next_report: Report | None
    runs: int
    exact: bool = True
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """What was found, for a terminal of 80 columns."""
        from gpumem_magic.renderers.forecast import largest_text

        return largest_text([self])

    def to_dict(self) -> dict[str, Any]:
        """What was found, and the reports that prove it, with a format number."""
        from gpumem_magic.renderers.forecast import largest_to_dict

        return largest_to_dict([self])

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was found and the reports, as `Report.save` does."""
        from gpumem_magic.renderers.formats.files import save_largest

        save_largest([self], path)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from gpumem_magic.renderers.forecast import largest_html

        return {"text/plain": self.text(), "text/html": largest_html([self])}


@dataclass(frozen=True, slots=True)
class Forecast:
    """One cell predicted for several cards: a report for each, in the order that was asked for."""

    reports: tuple[Report, ...]

    def text(self) -> str:
        """The cards as a table for a terminal of 80 columns."""
        return cards_text(self.reports)

    def to_dict(self) -> dict[str, Any]:
        """All reports as plain values, with a format number."""
        return all_to_dict(self.reports)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table and the reports, as `Report.save` does; pictures show the peaks."""
        save_cards(self.reports, path)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": cards_html(self.reports)}


@dataclass(frozen=True, slots=True)
class Fits:
    """The largest value of a variable on each of several cards, in the order asked for."""

    fits: tuple[Fit, ...]

    def text(self) -> str:
        """What was found, for a terminal of 80 columns."""
        return largest_text(self.fits)

    def to_dict(self) -> dict[str, Any]:
        """What was found, and the reports that prove it, with a format number."""
        return largest_to_dict(self.fits)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was found and the reports, as `Report.save` does."""
        save_largest(self.fits, path)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": largest_html(self.fits)}
