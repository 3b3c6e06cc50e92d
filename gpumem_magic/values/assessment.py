"""Answers about advice, as frozen values: what changes save, one change, what the rules say."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem_magic.values.advice import Advice, Example, Kind
from gpumem_magic.values.answer import Answer
from gpumem_magic.values.report import Report


@dataclass(frozen=True, slots=True)
class Assessment(Answer):
    """What each change to a cell would save, measured by dry runs.

    report: the cell as it is, on a card of this kind with unlimited memory; where it raised an
    error, nothing was measured. advice: changes that save, most first, and those that nothing was
    measured for. useless: changes that the rules proposed and that save nothing here. together: the
    best set of changes that can be made at once; None where it is one change. failed: rules whose
    changed cell raised an error, with that error. runs: dry runs made, in `seconds`. limit: bytes
    that PyTorch can have on the card. fits: whether the cell as it is fits the card; None where it
    was not tried to its end. again: the cell had run already, and what it left was taken out of the
    dry runs; else they begin with all that is alive. ran: the peak of the cell when it ran, in
    bytes, where dry runs of it do not come to the same. unmeasured: changes that were not tried, as
    the user did not wait for them.
    """

    report: Report
    advice: tuple[Advice, ...]
    useless: tuple[Advice, ...] = ()
    together: Advice | None = None
    failed: tuple[tuple[str, str], ...] = ()
    runs: int = 1
    limit: int | None = None
    fits: bool | None = None
    seconds: float = 0.0
    again: bool = False
    ran: int | None = None
    unmeasured: int = 0


@dataclass(frozen=True, slots=True)
class Change(Answer):
    """The cell that change `number` of the last advice makes of `source`."""

    number: int
    advice: Advice
    source: str


@dataclass(frozen=True, slots=True)
class RulePage:
    """A rule as its user reads it: paragraphs of text, and cells before and after."""

    name: str
    problem: str
    kind: Kind
    text: tuple[str, ...]
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class RulePages(Answer):
    """Rules in full, or, as a list, with their problem alone. note: what has to be said first."""

    pages: tuple[RulePage, ...]
    in_full: bool = False
    note: str = ""
