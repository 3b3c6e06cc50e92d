"""Proof of advice: every changed cell is run on the virtual GPU, beside the cell as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumem_magic.advice.rewrite import UnsafeError, agree, applied
from gpumem_magic.advice.rule import Advice, Known, Saves
from gpumem_magic.events import Cell
from gpumem_magic.predict import predict_cell
from gpumem_magic.report import Report
from gpumem_magic.view import View

WORTH = 0.01
"""Share of the size as it is that a change has to save; less is told as "saves nothing here"."""

_TOGETHER = "all together"


@dataclass(frozen=True, slots=True)
class Assessment(View):
    """What each change to a cell would save, measured by dry runs from what is alive now.

    report: the cell as it is, on a card of this kind with unlimited memory. advice: changes that
    save, most first, and those that nothing was measured for. useless: changes that the rules
    proposed and that save nothing here. together: the best set of changes that can be made at once;
    None where it is one change. failed: rules whose changed cell raised an error, with that error.
    runs: dry runs made. limit: bytes that PyTorch can have on the card.
    """

    report: Report
    advice: tuple[Advice, ...]
    useless: tuple[Advice, ...] = ()
    together: Advice | None = None
    failed: tuple[tuple[str, str], ...] = ()
    runs: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class _Laboratory:
    """Runs variants of one cell from one starting state."""

    cell: Cell
    to_code: Callable[[str], str]
    namespace: dict[str, Any]
    gpu: str | None
    cells: Mapping[str, Cell]
    optimizer_steps: int | None
    ignore: Collection[str]

    def run(self, source: str, *, everything: bool = False) -> Report:
        return predict_cell(
            replace(self.cell, source=source),
            self.to_code(source),
            self.namespace,
            self.gpu,
            cells=self.cells,
            optimizer_steps=self.optimizer_steps,
            limited=False,
            ignore=self.ignore,
            everything=everything,
        )


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
) -> Assessment:
    """Find and measure all advice for a cell: one dry run of it, one for each change, one for the
    changes together.

    to_code: makes Python code of a cell as typed, with the same lines. known: advice of a report of
    the same cell, to be measured as well. The others are those of `predict_cell`, which tells what
    it raises.
    """
    laboratory = _Laboratory(cell, to_code, namespace, gpu, cells or {}, optimizer_steps, ignore)
    report = laboratory.run(cell.source, everything=True)
    measured: list[Advice] = []
    useless: list[Advice] = []
    failed: list[tuple[str, str]] = []
    for advice in _distinct([*report.advice, *known]):
        if advice.source is None:
            measured.append(advice)
            continue
        changed = laboratory.run(advice.source)
        if changed.error is not None and changed.error != report.error:
            failed.append((advice.rule, changed.error))
            continue
        result = _compared(advice, report, changed)
        (measured if _is_worth(result) else useless).append(result)
    best = sorted(measured, key=lambda advice: -(advice.saving or 0))
    together = _together(cell.source, best)
    runs = 1 + len(failed) + sum(a.source is not None for a in (*best, *useless))
    if together is not None and together.source is not None:
        runs += 1
        changed = laboratory.run(together.source)
        together = _compared(together, report, changed)
        better = (together.saving or 0) > max((_saved_peak(a) for a in best), default=0)
        together = together if better and changed.error is None else None
    return Assessment(report, tuple(best), tuple(useless), together, tuple(failed), runs)


def _distinct(advice: Iterable[Advice]) -> list[Advice]:
    """Each once: those of the dry run first, those of an earlier report where it has none."""
    by_place: dict[tuple[str, int | None, str | None], Advice] = {}
    for one in advice:
        by_place.setdefault((one.rule, one.line, one.source), one)
    return list(by_place.values())


def _compared(advice: Advice, report: Report, changed: Report) -> Advice:
    before, after = _size(report, advice.saves), _size(changed, advice.saves)
    if before is None or after is None:
        return advice
    return replace(advice, saving=before - after, known=Known.MEASURED, before=before, after=after)


def _size(report: Report, saves: Saves) -> int | None:
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def _is_worth(advice: Advice) -> bool:
    """Whether a measured change saves something, or was never about memory."""
    return advice.saving is None or advice.saving > WORTH * (advice.before or 0)


def _saved_peak(advice: Advice) -> int:
    return (advice.saving or 0) if advice.saves is Saves.PEAK else 0


def _together(source: str, advice: Iterable[Advice]) -> Advice | None:
    """The changes that save most and do not touch the same text, as one; None of fewer than two."""
    chosen: list[Advice] = []
    for one in advice:
        if one.edits and all(agree(one.edits, other.edits) for other in chosen):
            chosen.append(one)
    if len(chosen) < 2:
        return None
    edits = tuple(edit for one in chosen for edit in one.edits)
    try:
        changed = applied(source, edits)
    except UnsafeError:
        return None
    rules = ", ".join(one.rule for one in chosen)
    return Advice(_TOGETHER, f"Together: {rules}.", "Make all of these changes.",
                  edits=edits, source=changed)  # fmt: skip
