"""Proof of advice: every changed cell is run on the virtual GPU, beside the cell as it is."""

from __future__ import annotations

import ast
import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpumem_magic.advice import KINDS, OF_ERRORS, ranked
from gpumem_magic.advice.changes.combined import combined
from gpumem_magic.advice.rewrite import UnsafeError, agree, applied
from gpumem_magic.dryrun import DryRun, DryRunError, Flow, Scenario, carry_out
from gpumem_magic.dryrun.runs import Result, StoppedError, outcome_of
from gpumem_magic.predict import planned, read_scenario, report_of
from gpumem_magic.sources.stacks.callsite import shell_in_use
from gpumem_magic.units import MIB
from gpumem_magic.values.advice import Advice, Argument, Kind, Known, Saves
from gpumem_magic.values.assessment import Assessment
from gpumem_magic.values.report import Report

__all__ = ["TOGETHER", "WORTH", "Assessment", "Question"]
__all__ += ["assess", "assess_source", "assessing", "question_of"]

WORTH = 0.01
"""Share of the size as it is that a change has to save; less is told as "saves nothing here"."""

ALIKE = 0.02
"""Share of its peak by which a dry run may differ from the cell that it is to repeat."""

WORTH_MORE = 0.05
"""Share of the peak as it is that changes together have to save beyond the best one alone, since
each has its price."""

TOGETHER = "all together"
"""What stands for the rule in advice that is several changes at once."""

Tell = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class _Run:
    """A dry run on a card without limit, and whether the card as it is would have been enough;
    None where the cell failed for another reason than memory."""

    report: Report
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a cell. scenario: the cell and what it is predicted with. to_code: makes
    Python code of a cell as typed, with the same lines. known: advice of a report of the same cell,
    to be measured as well. ignore: rules that give no advice. name: of the report. peak: allocated
    bytes at the peak of the cell as it ran on this card; None where it did not run to its end.
    filled: bytes of the card that it ran out of in that report. so_far: called with each change
    that saves something, as soon as it is measured."""

    scenario: Scenario
    to_code: Callable[[str], str]
    known: tuple[Advice, ...] = ()
    ignore: frozenset[str] = frozenset()
    name: str = ""
    peak: int | None = None
    filled: int | None = None
    so_far: Callable[[Advice], object] = lambda advice: None


def question_of(
    report: Report, scenario: Scenario, to_code: Callable[[str], str], *, compare: bool = True
) -> Question:
    """The question about the cell of a report. compare: whether dry runs should come to its peak,
    where it ran."""
    ran = compare and not report.predicted and report.error is None
    peak = report.peak.allocated if ran else None
    filled = report.device.total if report.oom is not None else None
    return Question(scenario, to_code, report.advice, name=report.name, peak=peak, filled=filled)


def assess(question: Question, tell: Tell = lambda done, asked: None) -> Assessment:
    """Find and measure all advice for a cell: one dry run of it, another on the card as it is where
    it does not fit, unless that was looked at, one for each change, and one or two for changes
    together; those of changes side by side. Where the cell as it is raises an error, nothing is
    measured, and only what is to end it is tried.

    tell(done, asked): called after each dry run. An interrupt ends it: what is measured by then is
    told. Raises as `predict`.
    """
    return carry_out(assessing(question), tell, partly=True)


def assessing(question: Question) -> Flow[Assessment]:
    """`assess` as a flow."""
    began = time.perf_counter()
    scenario = replace(question.scenario, limited=False)
    run = planned(scenario)
    (result,) = yield (run,)
    outcome = outcome_of(result)
    report = report_of(scenario, outcome, question.name, question.ignore, everything=True)
    as_is = _Run(report, outcome.fits)
    unknown = as_is.fits is False and question.filled != run.plan.total
    when_full = (yield from _told_when_full(question, report)) if unknown else []
    found = _distinct([*report.advice, *_told_before(question, report), *when_full])
    room = run.plan.total - run.plan.card.context
    done: _Done = {(scenario.cell.source, ()): as_is}
    ran = question.peak if _differs(question.peak, report) else None
    assessment = Assessment(report, tuple(found), limit=room, ran=ran)
    measuring = _measuring if report.error is None else _curing
    assessment = yield from measuring(question, done, assessment)
    seconds = time.perf_counter() - began
    return replace(
        assessment,
        runs=unknown + sum(run != _STOPPED for run in done.values()),
        fits=as_is.fits,
        seconds=seconds,
        again=outcome.again,
    )


def _told_when_full(
    question: Question, report: Report
) -> Generator[tuple[DryRun, ...], tuple[Result, ...], list[Advice]]:
    """What rules say that the dry run without limit, whose report is given, gives no reason to:
    what was asked for last, what was there then."""
    limited = replace(question.scenario, limited=True)
    (result,) = yield (planned(limited),)
    if isinstance(result, DryRunError):
        return []
    told = {one.rule for one in (*report.advice, *question.known)}
    when_full = report_of(limited, result, question.name, question.ignore)
    return [one for one in when_full.advice if one.rule not in told]


def _told_before(question: Question, report: Report) -> Iterator[Advice]:
    """What was said of the cell before; a dry run writes changes anew that have their price."""
    anew = {one.rule for one in report.advice if KINDS.get(one.rule) is Kind.TRADE}
    for one in question.known:
        written = one.rule in anew and one.source is None and report.error is None
        if one.rule not in question.ignore and not written:
            yield one


def _differs(peak: int | None, report: Report) -> bool:
    """Whether the dry run comes to another peak than the cell when it ran."""
    if peak is None or report.error is not None or report.peak.allocated is None:
        return False
    return abs(report.peak.allocated - peak) > max(MIB, ALIKE * peak)


def assess_source(
    source: str,
    namespace: dict[str, Any],
    gpu: str | None = None,
    *,
    optimizer_steps: int | None = None,
) -> Assessment:
    """`assess` for the text of a cell alone, in a notebook with its `!cmd` and `%magic` too."""
    shell = shell_in_use()
    to_code = shell.transform_cell if shell is not None else str
    return assess(
        Question(read_scenario(source, namespace, gpu, optimizer_steps=optimizer_steps), to_code)
    )


_STOPPED = "the user did not wait for it"

_Key = tuple[str, tuple[Argument, ...]]
_Done = dict[_Key, "_Run | str"]
"""What each changed cell came to, by its source and what is passed outside of it: a run, or the
error in its place."""


def _is_written(advice: Advice) -> bool:
    """Whether the change can be tried."""
    return advice.source is not None or bool(advice.arguments)


def _key(question: Question, advice: Advice) -> _Key:
    return advice.source or question.scenario.cell.source, advice.arguments


def _measuring(
    question: Question, done: _Done, found: Assessment
) -> Generator[tuple[DryRun, ...], tuple[Result, ...], Assessment]:
    """The advice with what it saves, and apart from it what saves nothing or does not run."""
    as_is = done[question.scenario.cell.source, ()]
    assert isinstance(as_is, _Run)
    yield from _running(question, done, found.advice, as_is)
    kept: list[Advice] = []
    useless: list[Advice] = []
    failed: list[tuple[str, str]] = []
    unmeasured = 0
    for advice in found.advice:
        if not _is_written(advice):
            kept.append(advice)
            continue
        result = done[_key(question, advice)]
        if result == _STOPPED:
            unmeasured += 1
            continue
        error, measured = _compared(result, as_is, advice)
        if found.ran is not None:
            measured = replace(measured, estimate=_estimate(question, advice))
        if error is not None:
            failed.append((advice.rule, error))
        else:
            (kept if _is_worth(advice, measured) else useless).append(measured)
    best = ranked(kept, as_is.report.peak.allocated)
    combination = yield from _combining(question, done, as_is, best)
    return replace(
        found,
        advice=tuple(best),
        useless=tuple(useless),
        together=combination,
        failed=tuple(failed),
        unmeasured=unmeasured,
    )


def _curing(
    question: Question, done: _Done, found: Assessment
) -> Generator[tuple[DryRun, ...], tuple[Result, ...], Assessment]:
    """The advice for a cell that raises an error, and apart from it what is to end the error, and
    does not."""
    as_is = done[question.scenario.cell.source, ()]
    assert isinstance(as_is, _Run)
    cures = [one for one in found.advice if one.rule in OF_ERRORS and _is_written(one)]
    yield from _running(replace(question, so_far=lambda advice: None), done, cures, as_is)
    errors = {one: _compared(done[_key(question, one)], as_is, one)[0] for one in cures}
    return replace(
        found,
        advice=tuple(one for one in found.advice if errors.get(one) is None),
        failed=tuple((one.rule, error) for one, error in errors.items() if error),
    )


def _running(
    question: Question, done: _Done, changes: Iterable[Advice], as_is: _Run
) -> Generator[tuple[DryRun, ...], tuple[Result, ...], None]:
    """Run the changed cells that were not run yet, side by side."""
    changes = tuple(changes)
    scenarios: dict[_Key, Scenario] = {}
    for key in (_key(question, one) for one in changes if _is_written(one)):
        if key in done or key in scenarios:
            continue
        source, arguments = key
        try:
            code = question.to_code(source)
            ast.parse(code)
        except SyntaxError as error:
            done[key] = f"SyntaxError: {error}"
            continue
        unlimited = replace(question.scenario, limited=False, arguments=arguments)
        scenarios[key] = unlimited.with_source(source, code)
    if not scenarios:
        return

    def ended(key: _Key, result: Result) -> None:
        done[key] = _read(question, scenarios[key], result)
        for advice in changes:
            if _is_written(advice) and _key(question, advice) == key:
                error, measured = _compared(done[key], as_is, advice)
                if error is None and (measured.saving or 0) > 0:
                    question.so_far(measured)

    results = yield tuple(
        replace(planned(scenario), ended=functools.partial(ended, key))
        for key, scenario in scenarios.items()
    )
    for (key, scenario), result in zip(scenarios.items(), results, strict=True):
        if key not in done:  # it was stopped
            done[key] = _read(question, scenario, result)


def _read(question: Question, scenario: Scenario, result: Result) -> _Run | str:
    """What a dry run of a change came to."""
    if isinstance(result, DryRunError):
        return _STOPPED if isinstance(result, StoppedError) else str(result)
    return _Run(report_of(scenario, result, question.name, advised=False), result.fits)


def _combining(
    question: Question, done: _Done, as_is: _Run, best: list[Advice]
) -> Generator[tuple[DryRun, ...], tuple[Result, ...], Advice | None]:
    """Changes that save more together than the best one alone: with that one, or else without it,
    as two that save the same bytes in two ways are no gain. Both are run: side by side they take
    no longer than one."""
    alone = max(map(_saved_peak, best), default=0)
    least = alone + WORTH_MORE * (as_is.report.peak.allocated or 0)
    candidates = [_together(question, best, first) for first in (0, 1)]
    sets = {_key(question, one): one for one in candidates if one}
    sets = {key: one for key, one in sets.items() if key not in done}
    yield from _running(question, done, sets.values(), as_is)
    for key, together in sets.items():
        error, measured = _compared(done[key], as_is, together)
        if error is None and _saved_peak(measured) > least:
            return measured
    return None


def _compared(changed: _Run | str, as_is: _Run, advice: Advice) -> tuple[str | None, Advice]:
    """The error that the changed cell raises, if any, and the advice with its measured saving."""
    if isinstance(changed, str):
        return changed, advice
    if changed.report.error is not None:
        return changed.report.error, advice
    before, after = _size(as_is.report, advice.saves), _size(changed.report, advice.saves)
    if before is None or after is None:
        return None, replace(advice, fits=changed.fits)
    return None, replace(
        advice,
        saving=before - after,
        known=Known.MEASURED,
        before=before,
        after=after,
        fits=changed.fits,
    )


def _distinct(advice: Iterable[Advice]) -> list[Advice]:
    """Each once: those of the dry run first, those of an earlier report where it has none."""
    found: dict[tuple[object, ...], Advice] = {}
    for one in advice:
        written = (one.source, one.arguments)
        key = (one.rule, *(written if _is_written(one) else (one.line, one.change)))
        found.setdefault(key, one)
    return list(found.values())


def _size(report: Report, saves: Saves) -> int | None:
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def _estimate(question: Question, advice: Advice) -> int | None:
    """What the report of the cell as it ran says that a change saves."""
    same = (o for o in question.known if (o.rule, o.source) == (advice.rule, advice.source))
    return next((one.saving for one in same), None)


def _is_worth(claimed: Advice, measured: Advice) -> bool:
    """Whether a change saves something, or as much as was claimed; or is made for another reason
    than memory."""
    saving = max(measured.saving or 0, measured.estimate or 0)
    if 2 * saving >= (claimed.saving or 0) > 0:
        return True
    least = MIB if KINDS.get(claimed.rule) is Kind.TRADE else 0
    if measured.saving is None or saving > max(WORTH * (measured.before or 0), least):
        return True
    return not claimed.saving and KINDS.get(claimed.rule) in (Kind.MISTAKE, Kind.FACT)


def _saved_peak(advice: Advice) -> int:
    return (advice.saving or 0) if advice.saves is Saves.PEAK else 0


def _together(question: Question, best: list[Advice], first: int) -> Advice | None:
    """The changes from `first` on that save most and can be made at once, as one; None of fewer
    than two."""
    chosen: list[Advice] = []
    source: str | None = ""
    for one in sorted(best, key=lambda one: -(one.saving or 0))[first:]:
        if _is_written(one) and all(_agree(one, other) for other in chosen):
            changed = _changed(question, [*chosen, one])
            if changed is not None:
                chosen, source = [*chosen, one], changed
    if len(chosen) < 2:
        return None
    edits = combined(question.scenario.cell.source, [one.edits for one in chosen])
    arguments = tuple(passed for one in chosen for passed in one.arguments)
    parts = [f"{best.index(one) + 1} {one.rule}" for one in chosen]
    said = Advice(TOGETHER, f"{', '.join(parts)}.", "", edits=edits, arguments=arguments)
    return replace(said, source=source if edits else None)


def _agree(one: Advice, other: Advice) -> bool:
    """Whether both changes can be made together."""
    passed = {(a.owner, a.name) for a in one.arguments}
    return agree(one.edits, other.edits) and not any(
        (a.owner, a.name) in passed for a in other.arguments
    )


def _changed(question: Question, advice: Iterable[Advice]) -> str | None:
    """The cell with these changes; None where they make no code together."""
    source = question.scenario.cell.source
    try:
        changed = applied(source, combined(source, [one.edits for one in advice]))
        compile(question.to_code(changed), "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (UnsafeError, SyntaxError):
        return None
    return changed
