"""Predictions of one cell side by side: on several cards, or the largest value for each of them."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem_magic.values.answer import Answer
from gpumem_magic.values.report import Report


@dataclass(frozen=True, slots=True)
class Fit(Answer):
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


@dataclass(frozen=True, slots=True)
class Forecast(Answer):
    """One cell predicted for several cards: a report for each, in the order that was asked for."""

    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class Fits(Answer):
    """The largest value of a variable on each of several cards, in the order asked for."""

    fits: tuple[Fit, ...]
