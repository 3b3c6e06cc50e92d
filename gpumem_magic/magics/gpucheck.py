"""Runs `%%gpucheck`: the code goes to dry runs instead of IPython, what they tell to the user."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from IPython.core.error import UsageError

from gpumem_magic.devices import check_device
from gpumem_magic.dryrun import DryRunError, Flow, Scenario, carry_out, together
from gpumem_magic.magics.display import show_report, show_text
from gpumem_magic.magics.gpucheck_options import Question
from gpumem_magic.magics.gpumem import as_cell
from gpumem_magic.magics.mark import without_mark_above
from gpumem_magic.magics.monitor import Monitor, harmless
from gpumem_magic.predict import fitting, predicting
from gpumem_magic.units import format_bytes
from gpumem_magic.values.forecast import Fit, Fits, Forecast
from gpumem_magic.values.recording import Cell
from gpumem_magic.values.report import Report

Result = Report | Forecast | Fit | Fits

_PACKAGE = Path(__file__).parents[1]


def run_check(monitor: Monitor, question: Question, code: str, above: int, raw: str) -> None:
    """Predict `code`, show what was found, keep it where `question` says.

    above: lines of `raw`, the text shown in the Report, that stand above the code. Raises
    SyntaxError of the code, and UsageError for what is wrong with the question or with us. Inside
    another prediction nothing happens, as nothing would happen to the device.
    """
    if monitor.predicting:
        return
    require_torch()
    shell = monitor.shell
    cell = as_cell(shell, without_mark_above(code), above, raw)
    task = _Task(monitor, question, cell, monitor.files.cells())
    with monitor.prediction(task.say):
        failure, result = task.attempt()
    if result is None:
        raise UsageError(failure)  # raised here, it holds on to nothing of the dry run
    monitor.take_note(_reports(result))
    if question.output:
        shell.user_ns[question.output] = result
    if question.save:
        with harmless(f"saving to {question.save}"):
            result.save(Path(question.save).expanduser())
    if isinstance(result, Report):
        show_report(shell, result, monitor.settings.plot)
    else:
        show_text(shell, result)


def _reports(result: Result) -> tuple[Report, ...]:
    """Those that --advise and --apply may be about."""
    if isinstance(result, Forecast):
        return result.reports
    return (result,) if isinstance(result, Report) else ()


def require_torch() -> None:
    """Raise UsageError without torch."""
    try:
        check_device("auto")
    except ModuleNotFoundError as error:
        raise UsageError(f"%%gpucheck: {error}") from None


@dataclass(slots=True)
class _Task:
    """The dry runs that one question needs, those for several cards side by side."""

    monitor: Monitor
    question: Question
    cell: Cell
    cells: Mapping[str, Cell]
    found: list[str] = field(default_factory=list, init=False)

    def say(self, seconds: float) -> str:
        """The progress line, with what is known already."""
        goal = f"looking for the largest {self.question.fit}" if self.question.fit else "predicting"
        gpus = self.question.gpus
        cards = f" for {gpus[0] if len(gpus) == 1 else f'{len(gpus)} cards'}" if gpus else ""
        return " \u00b7 ".join((f"{seconds:.0f} s", f"{goal}{cards}", *self.found))

    def attempt(self) -> tuple[str, Result | None]:
        """The result; or None, and why there is none."""
        try:
            return "", self._result()
        except (UsageError, SyntaxError):
            raise
        except DryRunError as error:
            return f"%%gpucheck: {error}", None
        except ValueError as error:
            if self.question.fit:
                return f"%%gpucheck: --fit {self.question.fit}: {error}", None
            return defect(error), None
        except Exception as error:
            return defect(error), None

    def _result(self) -> Result:
        scenarios = [scenario_of(self, card) for card in self.question.gpus or (None,)]
        if self.question.fit:
            fits = carry_out(together([self._fit(s, self.question.fit) for s in scenarios]))
            return fits[0] if len(fits) == 1 else Fits(fits)
        reports = carry_out(together([self._predict(scenario) for scenario in scenarios]))
        return reports[0] if len(reports) == 1 else Forecast(reports)

    def _predict(self, scenario: Scenario) -> Flow[Report]:
        number = self.cell.number
        name = self.question.name or (f"In[{number}]" if number else "")
        ignore = {*self.question.ignore, *self.monitor.settings.ignored}
        report = yield from predicting(scenario, name, ignore)
        verdict = "out of memory" if report.oom else f"peak {format_bytes(report.peak.allocated)}"
        self.found.append(f"{scenario.gpu}: {verdict}")
        return report

    def _fit(self, scenario: Scenario, name: str) -> Flow[Fit]:
        found = yield from fitting(scenario, name)
        self.found.append(f"{scenario.gpu}: {name} = {found.value:,}")
        return found


class Asked(Protocol):
    """What the tasks of magics have in common."""

    monitor: Monitor
    question: Question
    cell: Cell
    cells: Mapping[str, Cell]


def scenario_of(asked: Asked, card: str | None) -> Scenario:
    """What is predicted for a card."""
    question = asked.question
    return Scenario(
        asked.cell,
        asked.monitor.shell.user_ns,
        card,
        asked.cells,
        question.optimizer_steps,
        timeout=question.timeout,
    )


def defect(error: Exception) -> str:
    """One line about an error that is ours, with the place for who wants to report it."""
    text = str(error).partition("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    here = f"{Path(ours[-1].filename).relative_to(_PACKAGE)}:{ours[-1].lineno}" if ours else ""
    there = getattr(error, "place", here)  # in the dry run's own process
    place = f" ({there})" if there else ""
    return (
        "%%gpucheck: the prediction failed. That is a defect of gpumem_magic, not of your code: "
        f"{type(error).__name__}{f': {text}' if text else ''}{place}"
    )
