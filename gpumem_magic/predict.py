"""The pipeline for a cell that is not run: card -> dry run -> Recording -> Trace -> Report."""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from gpumem_magic.values.forecast import Fit

if TYPE_CHECKING:  # `import gpumem_magic` loads this file; numpy and torch wait for the first use
    from typing_extensions import Unpack

    from gpumem_magic.dryrun import DryRun, Flow, Scenario
    from gpumem_magic.dryrun.inside import Outcome
    from gpumem_magic.dryrun.runs import Result
    from gpumem_magic.fitting import Found
    from gpumem_magic.values.recording import Recording
    from gpumem_magic.values.report import Report

HEADROOM = 0.03
"""The share of a card that `fit` keeps free, for what a dry run does not see."""

MOST_RUNS = 12
"""Dry runs that `fit` makes at most, but for up to two beside a guess that proves wrong."""


class Limits(TypedDict, total=False):
    """What ends a dry run, and what is assumed in it: see `predict`."""

    optimizer_steps: int | None
    timeout: float | None
    assume: Sequence[str]
    worst_batch: str | None


_FILENAME = "<predicted cell>"

_FIRST_VALUE = 8

_COMPILES = re.compile(r"(?<!\bre)\.compile\(|torch_compile")
"""What code says that compiles a model."""


def predict(
    source: str,
    namespace: dict[str, Any] | None = None,
    gpu: str | None = None,
    *,
    name: str = "",
    **limits: Unpack[Limits],
) -> Report:
    """Where the memory of a cell would go on a card, told by a dry run: nothing is computed.

    source: the cell's text, in a notebook with its `!cmd` and `%magic` too. namespace: where its
    names live (default: the caller's globals); the dry run happens in a process of its own, so it,
    files and all else stay as they are. gpu: a card ("T4", "A100-80GB"), a size ("24GiB"), "cuda"
    or "cuda:1"; default: the card in use, a T4 where there is none. optimizer_steps: end every loop
    after so many steps of its optimizers. timeout: seconds after which a dry run that comes to
    nothing new is ended (default 120); after five times as many it is ended in any case. assume:
    libraries that are not installed, to be taken as if they were ("triton", "flash_attn").
    worst_batch: the name of a DataLoader, or a list of batches, that is to begin with its largest
    batch, for which an epoch is collated first; what the cell makes itself has to be a DataLoader.

    The report is one of `%%gpumem`, with `predicted` set. An error of the cell is in its `error`,
    out of memory in `oom`. Raises SyntaxError for what is no code, ValueError for an unknown card,
    RuntimeError, which says why, for a dry run that did not end.
    """
    if namespace is None:
        namespace = sys._getframe(1).f_globals
    scenario = read_scenario(source, namespace, gpu, **limits)
    return predict_cell(scenario, name)


def fit(
    source: str,
    name: str,
    namespace: dict[str, Any] | None = None,
    gpu: str | None = None,
    *,
    headroom: float = HEADROOM,
    accumulate: str | None = None,
    **limits: Unpack[Limits],
) -> Fit:
    """The largest whole number for the variable `name` with which the cell fits the card.

    name: a variable that the cell assigns (`name = ...`, whose value is then replaced) or that
    lives in the namespace. headroom: the share of the card that is to stay free. accumulate: a
    variable of the same kind that is set so that its product with `name` stays what it is, or a
    little more: the steps that gradients are accumulated over. limits: `optimizer_steps`,
    `timeout`, `assume` and `worst_batch`; they and the others are those of `predict`. At most 14
    dry runs.

    Raises as `predict`, and ValueError where `name` is unknown, no whole number, or without
    effect on the cell's memory, and where the cell fails otherwise than by running out of memory.
    """
    if namespace is None:
        namespace = sys._getframe(1).f_globals
    scenario = read_scenario(source, namespace, gpu, **limits)
    return fit_cell(replace(scenario, headroom=headroom), name, accumulate)


def predict_cell(scenario: Scenario, name: str = "") -> Report:
    """`predict` for a cell that is known as typed and as Python code."""
    from gpumem_magic.dryrun import carry_out

    return carry_out(predicting(scenario, name))


def predicting(scenario: Scenario, name: str = "", ignore: Collection[str] = ()) -> Flow[Report]:
    """`predict_cell` as a flow. Where it compiles, the cell is also run as it is written: beside
    it if its text says so, else after it."""
    from gpumem_magic.dryrun.runs import outcome_of

    as_written = replace(scenario, compiled=False, limited=False)
    beside = (as_written,) if _COMPILES.search(scenario.cell.python) else ()
    results = yield tuple(map(planned, (scenario, *beside)))
    outcome = outcome_of(results[0])
    report = report_of(scenario, outcome, name, ignore)
    if not outcome.compiled:
        return report
    if not beside:
        results += yield (planned(as_written),)
    return _with_eager(report, as_written, results[1])


def _with_eager(report: Report, as_written: Scenario, result: Result) -> Report:
    from gpumem_magic.dryrun import DryRunError

    if isinstance(result, DryRunError):
        error: str | None = str(result)
    else:
        eager = report_of(as_written, result, advised=False)
        error = eager.error
    if error is None:
        return replace(report, eager=eager.peak)
    return replace(report, unknown={**report.unknown, "eager": f"as written it ends: {error}"})


def planned(scenario: Scenario, *, writes: bool = False) -> DryRun:
    """The dry run of a scenario. Raises SyntaxError and ValueError as `predict`."""
    from gpumem_magic.devices import card_for, source_in_use
    from gpumem_magic.dryrun import plan_dry_run

    _check_syntax(scenario.cell.python, scenario.cell.filename)
    with source_in_use() as origin:
        card = card_for(scenario.gpu, origin)
        kept = int(card.total * scenario.headroom)
        card = replace(card, context=card.context + kept)
        return plan_dry_run(scenario, card, origin, writes=writes)


def report_of(
    scenario: Scenario,
    outcome: Outcome,
    name: str = "",
    ignore: Collection[str] = (),
    *,
    advised: bool = True,
    everything: bool = False,
) -> Report:
    """The report of a dry run. advised: whether advice is wanted; everything: see `advise`."""
    from gpumem_magic.pipeline import analyse

    recording = _with_cells(scenario, outcome)
    return analyse(recording, name, ignore, advised=advised, everything=everything).report


def _with_cells(scenario: Scenario, outcome: Outcome) -> Recording:
    """The recording of a dry run, which knows only the scripts that ran, with the other cells. What
    is kept free of the card is there for what was not seen."""
    recording = outcome.recording
    cells = {**scenario.cells, **recording.cells} if recording.cells else scenario.cells
    kept = int(recording.device.total * scenario.headroom)
    highest = max(0, recording.highest - kept)
    likely = min(recording.likely, highest)
    return replace(recording, cells=cells, highest=highest, likely=likely, fits=outcome.fits)


def fit_cell(scenario: Scenario, name: str, accumulate: str | None = None) -> Fit:
    """`fit` for a cell that is known as typed and as Python code."""
    from gpumem_magic.dryrun import carry_out

    return carry_out(fitting(scenario, name, accumulate))


def fitting(scenario: Scenario, name: str, accumulate: str | None = None) -> Flow[Fit]:
    """`fit_cell` as a flow: searches once more where less than `uncounted` would stay free."""
    found = yield from _searching(scenario, name, accumulate)
    report = found.report
    if report and report.is_tight:
        kept = scenario.headroom + (report.uncounted + 1) / report.device.total
        again = yield from _searching(replace(scenario, headroom=kept), name, accumulate)
        found = replace(again, runs=found.runs + again.runs)
    return found


def _searching(scenario: Scenario, name: str, accumulate: str | None) -> Flow[Fit]:
    from gpumem_magic.dryrun.runs import outcome_of
    from gpumem_magic.fitting import Found, search, try_of
    from gpumem_magic.rehearsal import Rehearsals

    _check_syntax(scenario.cell.python, scenario.cell.filename)
    start = _value_now(scenario.cell.python, name, scenario.namespace)
    whole = start
    if accumulate:
        whole *= _value_now(scenario.cell.python, accumulate, scenario.namespace)

    def values(value: int) -> dict[str, int]:
        """The variables; what is accumulated over is rounded up."""
        return {name: value, accumulate: -(-whole // value)} if accumulate else {name: value}

    first = planned(scenario)
    card = first.plan.card
    reports: dict[int, Report] = {}
    rehearsals = Rehearsals(first.allocator())
    searching = search(whole, card.total - card.context, MOST_RUNS, rehearsals.fits)
    wanted = next(searching)
    while True:
        scenarios = [scenario.with_values(values(value)) for value in wanted]
        results = yield tuple(planned(each, writes=True) for each in scenarios)
        tries = []
        for value, each, result in zip(wanted, scenarios, results, strict=True):
            outcome = outcome_of(result)
            report = report_of(each, outcome, f"{name} = {value}")
            _check_outcome(report, name, value)
            assert outcome.script is not None
            rehearsals.add(value, outcome.script, fits=report.oom is None)
            reports[value] = report
            tries.append(try_of(value, report))
        found = None
        if accumulate and wanted[0] == whole and tries[0].fits:  # more would be another training
            found = Found(whole, None, len(tries), exact=True)
        else:
            try:
                wanted = searching.send(tries)
            except StopIteration as ended:
                found = ended.value
        if found:
            notes = _conditions(scenario, values(found.value or 1), whole)
            return _fit(name, found, reports, notes)


def _conditions(scenario: Scenario, values: Mapping[str, int], whole: int) -> tuple[str, ...]:
    """What a value was found under: the headroom, and the other variable."""
    notes = []
    if scenario.headroom:
        notes.append(
            f"{100 * scenario.headroom:.3g} % of the card is kept free (--headroom): the numbers "
            "count it as in use."
        )
    if len(values) > 1:
        *_, (other, steps) = values.items()
        product = math.prod(values.values())
        least = f", not below {whole}" if product > whole else ""
        notes.append(f"{other} = {steps} keeps {' x '.join(values)} at {product}{least}.")
    return tuple(notes)


def _fit(name: str, found: Found, reports: Mapping[int, Report], notes: tuple[str, ...]) -> Fit:
    if not found.grows:
        raise ValueError(
            f"{name!r} does not change the memory of this cell: it is the same with {min(reports)} "
            f"and with {max(reports)}"
        )
    return Fit(
        name,
        found.value,
        reports.get(found.value),
        None if found.failing is None else reports[found.failing],
        found.tries,
        found.exact,
        notes if found.exact else (*notes, _doubt(found.value, found.failing, found.tries)),
    )


def _value_now(code: str, name: str, namespace: Mapping[str, Any]) -> int:
    """The variable's value as the cell or the namespace has it; a guess where the cell computes it.

    Raises ValueError for what cannot be fitted.
    """
    from gpumem_magic.dryrun.running.assignments import assignments

    found = assignments(ast.parse(code), name)
    if not found and name not in namespace:
        raise ValueError(
            f"{name!r} is neither assigned nor a call's argument ({name}=8) in the cell, nor a "
            f"variable of the notebook; a line {name} = 8 in the cell makes it one"
        )
    values = [namespace[name]] if not found else []
    for statement in found:
        with suppress(ValueError, TypeError):  # an expression: only running it would tell
            values.append(ast.literal_eval(statement.value or ""))
    wrong = [value for value in values if not isinstance(value, int) or isinstance(value, bool)]
    if wrong:
        raise ValueError(f"{name!r} is {wrong[0]!r}; only a whole number can be fitted")
    return max(1, values[0]) if values else _FIRST_VALUE


def _check_outcome(report: Report, name: str, value: int) -> None:
    """Raises ValueError where the cell failed for another reason than memory."""
    if report.error is not None and report.oom is None:
        raise ValueError(
            f"with {name} = {value:,} the cell fails, and not for want of memory: {report.error}; "
            f"every whole number up to the largest has to be possible (where only multiples of 8 "
            f"are, write 8 * {name})"
        )


def _doubt(value: int, failing: int | None, tries: int) -> str:
    if failing is None:
        return f"No value runs out of memory, as far as {tries} dry runs went: up to {value:,}."
    return (
        f"{tries} dry runs did not tell the largest value to the unit: {value:,} fits, "
        f"{failing:,} does not."
    )


def read_scenario(
    source: str, namespace: dict[str, Any], gpu: str | None = None, **limits: Unpack[Limits]
) -> Scenario:
    """The cell as typed and as Python code, and the cells of the notebook that it is called in."""
    from gpumem_magic.dryrun.scenario import TIMEOUT, Scenario
    from gpumem_magic.sources.stacks.callsite import CellFiles, shell_in_use
    from gpumem_magic.values.recording import Cell
    from gpumem_magic.virtual.assumable import assumable

    shell = shell_in_use()
    cell = Cell(source, _FILENAME)
    cells: Mapping[str, Cell] = {}
    if shell is not None:
        files = CellFiles(shell)
        made = files.cell(source, shell.transform_cell(source), 0)
        cell = replace(made, filename=_FILENAME, number=None)
        cells = files.cells()
    timeout = limits.get("timeout")
    limit = TIMEOUT if timeout is None else timeout
    if limit <= 0:
        raise ValueError(f"timeout is {limit}; it is a number of seconds above 0")
    assume = limits.get("assume")
    return Scenario(
        cell,
        namespace,
        gpu,
        cells,
        limits.get("optimizer_steps"),
        timeout=limit,
        assume=assumable(",".join(assume)) if assume else (),
        worst_batch=limits.get("worst_batch"),
    )


def _check_syntax(code: str, filename: str) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile(code, filename, "exec", flags=flags, dont_inherit=True)
