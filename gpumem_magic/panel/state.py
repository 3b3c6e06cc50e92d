"""What the panel is about at the moment: one for all of its views, and nothing of how it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpumem_magic.advice import Advice
from gpumem_magic.history import History
from gpumem_magic.sources import Source
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

SHOWN = 100
"""Reports that are listed and drawn at once; the range chooses which."""


class Host(Protocol):
    """What the panel needs of the extension in its shell."""

    shell: Any
    settings: Any
    history: History
    source: Source | None
    files: Any
    why_off: str
    running: bool
    observers: list[Any]

    def enter(self) -> None:
        """Let the source act on the code that runs from now on."""

    def leave(self) -> None:
        """End what `enter` began."""

    def prediction(self, say: Callable[[float], str] | None = None) -> AbstractContextManager[None]:
        """Around dry runs."""


@dataclass(slots=True)
class State:
    """Which reports are looked at, and how.

    chosen: the report whose details are shown; None follows the latest. other: a report to compare
    it with. first, last: numbers of the first and the last report that are listed; None for the
    oldest and the latest. moment: a point of the chosen report's timeline; None for its peak.
    ignored: rules whose advice is not shown. measured: advice that was measured, by its report and
    its own place among that report's advice.
    """

    history: History
    chosen: Report | None = None
    other: Report | None = None
    first: int | None = None
    last: int | None = None
    moment: int | None = None
    picked: int = 0
    ignored: frozenset[str] = frozenset()
    measured: dict[int, tuple[Report, tuple[Advice, ...]]] = field(default_factory=dict)

    @property
    def report(self) -> Report | None:
        """The report whose details are shown; the latest where none is chosen."""
        reports = self.history.reports
        if self.chosen is not None and any(one is self.chosen for one in reports):
            return self.chosen
        return reports[-1] if reports else None

    @property
    def bounds(self) -> tuple[int, int]:
        """Numbers of the first and the last report that are listed; (1, 0) for none."""
        count = len(self.history)
        last = min(self.last or count, count)
        first = max(self.first or 1, last - SHOWN + 1, 1)
        return min(first, max(last, 1)), last

    @property
    def listed(self) -> tuple[tuple[int, Report], ...]:
        """The reports of the range, each with its number."""
        first, last = self.bounds
        return tuple(enumerate(self.history.reports[first - 1 : last], first))

    def number(self, report: Report | None) -> int | None:
        """The number of a report in the history."""
        found = (n for n, one in enumerate(self.history.reports, 1) if one is report)
        return next(found, None)

    def choose(self, report: Report | None) -> None:
        """Look at this report, at its peak, and at its first advice."""
        self.chosen, self.moment, self.picked = report, None, 0

    def advice(self) -> tuple[Advice, ...]:
        """The advice for the chosen report, as it was measured last, without ignored rules."""
        report = self.report
        if report is None:
            return ()
        kept, measured = self.measured.get(id(report), (None, ()))
        found = measured if kept is report else report.advice
        return tuple(one for one in found if one.rule not in self.ignored)

    def remember(self, report: Report, advice: tuple[Advice, ...]) -> None:
        """Show measured advice in place of what the report itself says."""
        latest = [*self.measured.items()][-20:]
        self.measured = {**dict(latest), id(report): (report, advice)}

    def left(self) -> Mapping[Category, int]:
        """What the latest measured cell left, by kind."""
        reports = self.history.reports
        return reports[-1].at_end if reports else {}
