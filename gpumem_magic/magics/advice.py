"""Runs `%gpucheck --advise`, `--apply`, `--explain RULE` and `--rules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from IPython.core.error import UsageError

from gpumem_magic.advice import RULES, Advice, find_rule, pages_of
from gpumem_magic.assess import Question as AdviceQuestion
from gpumem_magic.assess import assess
from gpumem_magic.dryrun import DryRunError
from gpumem_magic.magics.display import show_text
from gpumem_magic.magics.gpucheck import defect, require_torch, scenario_of
from gpumem_magic.magics.gpucheck_options import Consultation, Question
from gpumem_magic.magics.gpumem import as_cell
from gpumem_magic.magics.mark import without_mark_above
from gpumem_magic.magics.monitor import Monitor, harmless
from gpumem_magic.renderers.advice.wording import offered
from gpumem_magic.values.answer import Answer
from gpumem_magic.values.assessment import Assessment, Change, RulePages
from gpumem_magic.values.recording import Cell

_OURS = ("%%gpumem", "%%gpucheck")
_NO_CELL = (
    "%gpucheck --advise: no cell was measured or predicted yet; run one with %%gpumem on top, or "
    "put %%gpucheck --advise on top of one that was not run"
)
_NO_ADVICE = (
    "%gpucheck --apply: no advice was shown yet; %gpucheck --advise finds what would save memory "
    "in the last cell"
)


def run_advise(monitor: Monitor, question: Question, code: str, above: int, raw: str) -> None:
    """Measure what changes to `code`, or without it to the last cell, would save, and show it.

    above, raw: as for `run_check`. Raises SyntaxError of the code, and UsageError where there is no
    cell or for a defect of ours. Inside a prediction nothing happens.
    """
    if monitor.predicting:
        return
    require_torch()
    if code.strip():
        cell = as_cell(monitor.shell, without_mark_above(code), above, raw)
        name = f"In[{cell.number}]" if cell.number else ""
        task = _Task(monitor, question, cell, monitor.files.cells(), name)
    else:
        task = _about_last_cell(monitor, question)
    with monitor.prediction(task.say):
        failure, assessment = task.attempt()
    if assessment is None:
        raise UsageError(failure)
    monitor.offer(assessment.report, offered(assessment.advice, assessment.together))
    _keep(monitor, assessment, question.output, question.save)
    show_text(monitor.shell, assessment)


def run_consultation(monitor: Monitor, asked: Consultation) -> None:
    """Answer what is asked of advice and rules. Raises UsageError for a number that none has."""
    if monitor.predicting:
        return
    answer: Answer
    if asked.apply is not None:
        answer = change = _change(monitor, asked.apply)
        monitor.shell.set_next_input(change.advice.source or "")
    elif asked.explain is not None:
        answer = RulePages(pages_of([find_rule(asked.explain)]), in_full=True, note=asked.note)
    else:
        answer = RulePages(pages_of(RULES))
    _keep(monitor, answer, asked.output, asked.save)
    show_text(monitor.shell, answer)


def _keep(monitor: Monitor, answer: Answer, output: str | None, save: str | None) -> None:
    if output:
        monitor.shell.user_ns[output] = answer
    if save:
        with harmless(f"saving to {save}"):
            answer.save(Path(save).expanduser())


def _change(monitor: Monitor, number: int) -> Change:
    """The change of that number. Raises UsageError, saying what to do, where there is none."""
    offer = monitor.offered
    if offer is None:
        raise UsageError(_NO_ADVICE)
    magic = f"%gpucheck --apply {number}"
    if number > len(offer.advice):
        numbers = "1" if len(offer.advice) == 1 else f"1 to {len(offer.advice)}"
        raise UsageError(f"{magic}: the advice shown last has number {numbers}")
    advice = offer.advice[number - 1]
    if advice.source is None:
        raise UsageError(f"{magic}: {advice.rule} has no changed cell: {advice.change}")
    return Change(number, advice, offer.source)


@dataclass(slots=True)
class _Task:
    """The dry runs that one question needs."""

    monitor: Monitor
    question: Question
    cell: Cell
    cells: Mapping[str, Cell]
    name: str
    known: tuple[Advice, ...] = ()
    again: bool = False
    under_way: str = field(default="", init=False)

    def say(self, seconds: float) -> str:
        """The progress line."""
        return f"{seconds:.0f} s · measuring changes{self.under_way}"

    def attempt(self) -> tuple[str, Assessment | None]:
        """The assessment; or None, and why there is none."""
        question, settings = self.question, self.monitor.settings
        try:
            asked = AdviceQuestion(
                replace(scenario_of(self, (*question.gpus, None)[0]), again=self.again),
                self.monitor.files.python,
                self.known,
                frozenset((*question.ignore, *settings.ignored)),
                question.name or self.name,
            )
            return "", assess(asked, self._tell)
        except (UsageError, SyntaxError):
            raise
        except DryRunError as error:
            return f"%%gpucheck --advise: {error}", None
        except Exception as error:
            return defect(error), None

    def _tell(self, done: int, asked: int) -> None:
        self.under_way = f" ({done} of {asked} dry runs are done)"


def _about_last_cell(monitor: Monitor, question: Question) -> _Task:
    """Raises UsageError where no cell has a report yet."""
    report = monitor.last_report or (monitor.history[-1] if len(monitor.history) else None)
    if report is None:
        raise UsageError(_NO_CELL)
    cell = monitor.files.with_code(report.cell)
    cells, again = monitor.files.cells(), not report.predicted
    return _Task(monitor, question, cell, cells, report.name, report.advice, again)
