"""Advice that the user asks for: changes measured by dry runs, one put into the notebook, the
rules' pages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from IPython.core.error import UsageError

from gpumem_magic.advice import RULES, find_rule, pages_of
from gpumem_magic.assess import Question, assess
from gpumem_magic.magics.monitor import Monitor
from gpumem_magic.magics.option_values import nearest_rule, rule_names
from gpumem_magic.magics.predictions import attempt
from gpumem_magic.renderers.advice import measured, offered, what_to_do
from gpumem_magic.values.advice import Advice
from gpumem_magic.values.assessment import Assessment, Change, RulePages
from gpumem_magic.values.report import Report

_NO_CELL = (
    "%gpucheck --advise: no cell was measured or predicted yet; run one with %%gpumem on top, or "
    "put %%gpucheck --advise on top of one that was not run"
)
_NO_ADVICE = (
    "%gpucheck --apply: no advice was shown yet; %gpucheck --advise finds what would save memory "
    "in the last cell"
)

_PREDICTED = re.compile(r"\A\s*%%gpucheck\b.*")


@dataclass(slots=True)
class _Counted:
    """Says how many dry runs are done."""

    under_way: str = field(default="", init=False)
    best: Advice | None = field(default=None, init=False)

    def note(self, done: int, asked: int) -> None:
        self.under_way = f" ({done} of {asked} dry runs are done)"

    def take(self, advice: Advice) -> None:
        if self.best is None or (advice.saving or 0) > (self.best.saving or 0):
            self.best = advice

    def say(self, seconds: float) -> str:
        under_way = f"{seconds:.0f} s · measuring changes{self.under_way}"
        if self.best is None:
            return under_way
        so_far = f"{self.best.rule}: {measured(self.best)}. {what_to_do(self.best)}"
        return f"{under_way}; the best so far, which an interrupt keeps: {so_far}"


def measure_changes(
    monitor: Monitor, question: Question, report: Report | None = None
) -> Assessment:
    """Measure what changes to a cell would save, and remember them under their numbers. Raises as
    `attempt`.

    report: the one of the cell as it ran, which stays the last one.
    """
    counted = _Counted()
    with monitor.prediction(counted.say):
        asked = replace(question, so_far=counted.take)
        found = attempt(lambda: assess(asked, counted.note), "%%gpucheck --advise")
    monitor.offer(report or found.report, offered(found.advice, found.together))
    return found


def last_report(monitor: Monitor) -> Report:
    """The report of the last cell. Raises UsageError where there is none yet."""
    report = monitor.last_report or next(reversed(monitor.history.reports), None)
    if report is None:
        raise UsageError(_NO_CELL)
    return report


def pages(rule: str | None = None) -> RulePages:
    """What rules say: all of them in short, one in full; its name may be nearly right."""
    if rule is None:
        return RulePages(pages_of(RULES))
    name = rule_named(rule) or rule
    note = "" if name == rule else f"No rule {rule}; nearest:"
    return RulePages(pages_of([find_rule(name)]), in_full=True, note=note)


def rule_named(text: str) -> str | None:
    """The rule whose name `text` is, or nearly is; None for a text of another kind."""
    if text in rule_names():
        return text
    return nearest_rule(text) if len(text) < 60 else None


def apply(monitor: Monitor, number: int) -> Change:
    """Put the cell changed by that advice into the notebook. Raises UsageError, saying what to do,
    where there is none."""
    change = _change(monitor, number)
    # a cell that was only predicted would be predicted again, and never run
    source = _PREDICTED.sub("%%gpumem", change.advice.source or "", count=1)
    monitor.shell.set_next_input(source)
    return change


def _change(monitor: Monitor, number: int) -> Change:
    offer = monitor.offered
    if offer is None:
        raise UsageError(_NO_ADVICE)
    magic = f"%gpucheck --apply {number}"
    if not offer.advice:
        raise UsageError(f"{magic}: nothing was found that would save memory in the last cell")
    if number > len(offer.advice):
        numbers = "1" if len(offer.advice) == 1 else f"1 to {len(offer.advice)}"
        raise UsageError(f"{magic}: the advice shown last has number {numbers}")
    advice = offer.advice[number - 1]
    if advice.source is None:
        raise UsageError(f"{magic}: {advice.rule} has no changed cell: {advice.change}")
    return Change(number, advice, offer.source)
