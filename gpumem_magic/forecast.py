"""Predictions of one cell side by side: on several cards, or the largest value for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from gpumem_magic.predict import Fit
from gpumem_magic.renderers.cards import cards_html, cards_text
from gpumem_magic.renderers.files import save_cards, save_largest
from gpumem_magic.renderers.json import all_to_dict
from gpumem_magic.renderers.largest import largest_html, largest_text, largest_to_dict
from gpumem_magic.report import Report


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
