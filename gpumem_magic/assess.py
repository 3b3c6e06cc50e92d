"""Proof of advice: every changed cell is run on the virtual GPU, beside the cell as it is."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpumem_magic.advice import RULES
from gpumem_magic.advice.combined import combined
from gpumem_magic.advice.rewrite import UnsafeError, agree, applied
from gpumem_magic.advice.rule import Advice, Kind, Known, Saves
from gpumem_magic.assessment import Assessment
from gpumem_magic.events import Cell
from gpumem_magic.predict import predict_cell, read_cell
from gpumem_magic.report import Report
from gpumem_magic.sources.cards import card_for, source_in_use
from gpumem_magic.sources.virtual.catalog import GPUModel
from gpumem_magic.sources.virtual.cloning import clone
from gpumem_magic.sources.virtual.script import Scribe

__all__ = ["TOGETHER", "WORTH", "Assessment", "assess", "assess_source"]

WORTH = 0.01
"""Share of the size as it is that a change has to save; less is told as "saves nothing here"."""

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


@dataclass(slots=True)
class _Laboratory:
    """Runs variants of one cell from one starting state, each only once."""

    cell: Cell
    to_code: Callable[[str], str]
    namespace: dict[str, Any]
    gpu: str | None
    card: GPUModel
    cells: Mapping[str, Cell]
    optimizer_steps: int | None
    ignore: Collection[str]
    name: str
    tell: Tell
    expected: int = 1
    done: dict[str, _Run] = field(default_factory=dict)

    def run(self, source: str, *, everything: bool = False) -> _Run:
        if source not in self.done:
            self.tell(len(self.done) + 1, max(self.expected, len(self.done) + 1))
            self.done[source] = self._run(source, everything)
        return self.done[source]

    def _run(self, source: str, everything: bool) -> _Run:
        scribe = Scribe()
        report = predict_cell(
            replace(self.cell, source=source),
            self.to_code(source),
            self.namespace,
            self.gpu,
            cells=self.cells,
            optimizer_steps=self.optimizer_steps,
            scribe=scribe,
            limited=False,
            ignore=self.ignore,
            everything=everything,
            name=self.name,
        )
        return _Run(report, None if report.error else _fits(report, scribe, self.card))


def assess(
    cell: Cell,
    to_code: Callable[[str], str],
    namespace: dict[str, Any],
    gpu: str | None = None,
    *,
    known: Iterable[Advice] = (),
    cells: Mapping[str, Cell] | None = None,
    optimizer_steps: int | None = None,
    ignore: Collection[str] = (),
    name: str = "",
    tell: Tell = lambda run, runs: None,
) -> Assessment:
    """Find and measure all advice for a cell: one dry run of it, one for each change, one for the
    changes together, or two where the first is no gain. Where the cell as it is raises an error,
    nothing is measured.

    to_code: makes Python code of a cell as typed, with the same lines. known: advice of a report of
    the same cell, to be measured as well. tell(run, runs): called before each dry run. The others
    are those of `predict_cell`, which tells what it raises.
    """
    began = time.perf_counter()
    with source_in_use() as origin:
        card = card_for(gpu, origin)
    laboratory = _Laboratory(
        cell, to_code, namespace, gpu, card, cells or {}, optimizer_steps, ignore, name, tell
    )
    as_is = laboratory.run(cell.source, everything=True)
    found = _distinct([*as_is.report.advice, *(one for one in known if one.rule not in ignore)])
    result = Assessment(as_is.report, tuple(found), limit=card.total - card.context)
    if as_is.report.error is None:
        result = _measured(laboratory, as_is, result)
    seconds = time.perf_counter() - began
    return replace(result, runs=len(laboratory.done), fits=as_is.fits, seconds=seconds)


def assess_source(
    source: str,
    namespace: dict[str, Any],
    gpu: str | None = None,
    *,
    optimizer_steps: int | None = None,
) -> Assessment:
    """`assess` for the text of a cell alone, in a notebook with its `!cmd` and `%magic` too."""
    cell, _, cells = read_cell(source)
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    to_code = shell.transform_cell if shell is not None else str
    return assess(cell, to_code, namespace, gpu, cells=cells, optimizer_steps=optimizer_steps)


def _measured(laboratory: _Laboratory, as_is: _Run, found: Assessment) -> Assessment:
    """The advice with what it saves, and apart from it what saves nothing or does not run."""
    kept: list[Advice] = []
    useless: list[Advice] = []
    failed: list[tuple[str, str]] = []
    laboratory.expected += len({one.source for one in found.advice if one.source is not None})
    for advice in found.advice:
        if advice.source is None:
            kept.append(advice)
            continue
        error, measured = _try(laboratory, as_is, advice)
        if error is not None:
            failed.append((advice.rule, error))
        else:
            (kept if _is_worth(advice, measured) else useless).append(measured)
    best = sorted(kept, key=lambda one: -(one.saving or 0))
    return replace(
        found,
        advice=tuple(best),
        useless=tuple(useless),
        together=_best_together(laboratory, as_is, best),
        failed=tuple(failed),
    )


def _best_together(laboratory: _Laboratory, as_is: _Run, best: list[Advice]) -> Advice | None:
    """Changes that save more together than the best one alone: with that one, or else without it,
    as two that save the same bytes in two ways are no gain."""
    alone = max(map(_saved_peak, best), default=0)
    least = alone + WORTH_MORE * (as_is.report.peak.allocated or 0)
    for first in (0, 1):
        together = _together(laboratory, best, first)
        if together is None or together.source in laboratory.done:
            continue
        laboratory.expected += 1
        error, measured = _try(laboratory, as_is, together)
        if error is None and _saved_peak(measured) > least:
            return measured
    return None


def _try(laboratory: _Laboratory, as_is: _Run, advice: Advice) -> tuple[str | None, Advice]:
    """The error that the changed cell raises, if any, and the advice with its measured saving."""
    try:
        changed = laboratory.run(advice.source or "")
    except SyntaxError as error:
        return f"SyntaxError: {error}", advice
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
    found: dict[tuple[str, int | str | None, str], Advice] = {}
    for one in advice:
        key = (one.rule, one.source, "") if one.source else (one.rule, one.line, one.change)
        found.setdefault(key, one)
    return list(found.values())


def _fits(report: Report, scribe: Scribe, card: GPUModel) -> bool:
    """Whether the cell, which ran without limit, fits the card.

    Where the cache alone is too large, what was asked of the allocator is asked again of one that
    has no more than the card, and so gives its cache back.
    """
    limit = card.total - card.context
    if (report.peak.reserved or 0) <= limit:
        return True
    if (report.peak.allocated or 0) > limit:
        return False
    script = scribe.script
    start = clone(script.start)
    start.driver.total = card.total  # type: ignore[misc] # a SimulatedDriver: it can be set there
    return replace(script, start=start).fits(script.sizes())


def _size(report: Report, saves: Saves) -> int | None:
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def _is_worth(claimed: Advice, measured: Advice) -> bool:
    """Whether a change saves something, or is made for another reason than memory."""
    if measured.saving is None or measured.saving > WORTH * (measured.before or 0):
        return True
    kinds = {rule.name: rule.kind for rule in RULES}
    return not claimed.saving and kinds.get(claimed.rule) in (Kind.MISTAKE, Kind.FACT)


def _saved_peak(advice: Advice) -> int:
    return (advice.saving or 0) if advice.saves is Saves.PEAK else 0


def _together(laboratory: _Laboratory, best: list[Advice], first: int) -> Advice | None:
    """The changes from `first` on that save most and can be made at once, as one; None of fewer
    than two."""
    chosen: list[Advice] = []
    source = ""
    for one in best[first:]:
        if one.edits and all(agree(one.edits, other.edits) for other in chosen):
            changed = _changed(laboratory, [*chosen, one])
            if changed is not None:
                chosen, source = [*chosen, one], changed
    if len(chosen) < 2:
        return None
    edits = combined(laboratory.cell.source, [one.edits for one in chosen])
    parts = [f"{best.index(one) + 1} {one.rule}" for one in chosen]
    return Advice(TOGETHER, f"{', '.join(parts)}.", "", edits=edits, source=source)


def _changed(laboratory: _Laboratory, advice: Iterable[Advice]) -> str | None:
    """The cell with these changes; None where they make no code together."""
    source = laboratory.cell.source
    try:
        changed = applied(source, combined(source, [one.edits for one in advice]))
        ast.parse(laboratory.to_code(changed))
    except (UnsafeError, SyntaxError):
        return None
    return changed
