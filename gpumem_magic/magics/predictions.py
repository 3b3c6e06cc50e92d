"""Predictions that the user asks for: dry runs for one card or many, and what they tell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from IPython.core.error import UsageError

from gpumem_magic.devices import check_device
from gpumem_magic.dryrun import DryRunError, Flow, Scenario, carry_out, together
from gpumem_magic.magics.faults import shown_in_one_line
from gpumem_magic.magics.mark import without_mark_above
from gpumem_magic.magics.monitor import Monitor
from gpumem_magic.predict import HEADROOM, fitting, predicting
from gpumem_magic.sources.failures import one_line
from gpumem_magic.sources.stacks.frames import place_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.forecast import Fit, Fits, Forecast
from gpumem_magic.values.recording import Cell
from gpumem_magic.values.report import Report

if TYPE_CHECKING:
    from gpumem_magic.magics.gpucheck import Check

_T = TypeVar("_T")


def predict(monitor: Monitor, check: Check) -> Report | Forecast | Fit | Fits:
    """What a check asks to be predicted. Raises as `attempt`."""
    require_torch()
    cell, ignored = cell_of(monitor, check), monitor.settings.ignored
    scenarios = tuple(scenario_of(monitor, check, cell, card) for card in check.gpu or (None,))
    asked = Predictions(monitor, scenarios, check.name or "", {*check.ignore, *ignored})
    if check.fit:
        return asked.fit(check.fit, check.accumulate)
    found = asked.predict()
    monitor.take_note(found.reports if isinstance(found, Forecast) else (found,))
    return found


def cell_of(monitor: Monitor, check: Check) -> Cell:
    """The code of a check, as the cell that it stands in."""
    code, above = without_mark_above(check.code), len(check.mark.splitlines())
    return monitor.files.compiled(code, above, check.mark + check.code)


def scenario_of(monitor: Monitor, check: Check, cell: Cell, card: str | None) -> Scenario:
    """What is to be predicted of a cell on one card."""
    names, cells = monitor.shell.user_ns, monitor.files.cells()
    headroom = HEADROOM if check.headroom is None else check.headroom
    return Scenario(
        *(cell, names, card, cells, check.optimizer_steps),
        timeout=check.timeout,
        headroom=headroom if check.fit else 0.0,
        assume=check.assume,
        worst_batch=check.worst_batch,
    )


@dataclass(slots=True)
class Predictions:
    """The dry runs of one cell on one card or many, those for several cards side by side.

    name: of the report; "" for the cell's number. ignore: rules that give no advice.
    """

    monitor: Monitor
    scenarios: tuple[Scenario, ...]
    name: str = ""
    ignore: Collection[str] = ()
    _found: list[str] = field(default_factory=list, init=False)

    def predict(self) -> Report | Forecast:
        """A report, or those of several cards. Raises as `attempt`."""
        flows = [self._predict(scenario) for scenario in self.scenarios]
        with self.monitor.prediction(lambda seconds: self._said(seconds, "predicting")):
            reports = attempt(lambda: carry_out(together(flows)))
        return reports[0] if len(reports) == 1 else Forecast(reports)

    def fit(self, variable: str, accumulate: str | None = None) -> Fit | Fits:
        """The largest value of a variable that fits, on each card; see `gpumem_magic.fit`. Raises
        as `attempt`."""
        flows = [self._fit(scenario, variable, accumulate) for scenario in self.scenarios]
        goal = f"looking for the largest {variable}"
        with self.monitor.prediction(lambda seconds: self._said(seconds, goal)):
            fits = attempt(lambda: _fitted(flows, variable))
        return fits[0] if len(fits) == 1 else Fits(fits)

    def _said(self, seconds: float, goal: str) -> str:
        """The progress line, with what is known already."""
        gpus = [scenario.gpu for scenario in self.scenarios if scenario.gpu]
        cards = f" for {gpus[0] if len(gpus) == 1 else f'{len(gpus)} cards'}" if gpus else ""
        return " \u00b7 ".join((f"{seconds:.0f} s", f"{goal}{cards}", *self._found))

    def _predict(self, scenario: Scenario) -> Flow[Report]:
        number = scenario.cell.number
        name = self.name or (f"In[{number}]" if number else "")
        report = yield from predicting(scenario, name, self.ignore)
        verdict = "out of memory" if report.oom else f"peak {format_bytes(report.peak.allocated)}"
        self._found.append(f"{scenario.gpu}: {verdict}")
        return report

    def _fit(self, scenario: Scenario, variable: str, accumulate: str | None) -> Flow[Fit]:
        found = yield from fitting(scenario, variable, accumulate)
        self._found.append(f"{scenario.gpu}: {variable} = {found.value:,}")
        return found


def _fitted(flows: Sequence[Flow[Fit]], variable: str) -> tuple[Fit, ...]:
    try:
        return carry_out(together(flows))
    except ValueError as error:
        raise DryRunError(f"--fit {variable}: {error}") from None


def attempt(dry_runs: Callable[[], _T], magic: str = "%%gpucheck") -> _T:
    """What dry runs come to. Raises SyntaxError of the code, UsageError for a dry run that did not
    end and for a defect of ours, and KeyboardInterrupt, which is shown in one line."""
    failure, found = _outcome(dry_runs, magic)
    if found is not None:
        return found
    # raised here, they hold on to nothing of the dry run
    if isinstance(failure, str):
        raise UsageError(failure)
    raise failure


def _outcome(dry_runs: Callable[[], _T], magic: str) -> tuple[str | KeyboardInterrupt, _T | None]:
    try:
        return "", dry_runs()
    except (UsageError, SyntaxError):
        raise
    except KeyboardInterrupt:
        return _stopped(magic), None
    except DryRunError as error:
        return f"{magic}: {error}", None
    except Exception as error:
        return _defect(error), None


def _stopped(magic: str) -> KeyboardInterrupt:
    said = f"{magic}: stopped; your code and names are as they were"
    return shown_in_one_line(KeyboardInterrupt(said), said)


def require_torch() -> None:
    """Raise UsageError without torch."""
    try:
        check_device("auto")
    except ModuleNotFoundError as error:
        raise UsageError(f"%%gpucheck: {error}") from None


def _defect(error: Exception) -> str:
    """One line about an error that is ours, with the place for who wants to report it."""
    # where the dry run's own process raised it, that process knows
    place = getattr(error, "place", place_of(error))
    return (
        "%%gpucheck: the prediction failed. That is a defect of gpumem_magic, not of your code: "
        f"{one_line(error)}{f' ({place})' if place else ''}"
    )
