"""The pipeline for a cell that is not run: card -> dry run -> Recording -> Trace -> Report."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `import gpumem_magic` loads this file; numpy and torch wait for the first use
    from gpumem_magic.events import Cell
    from gpumem_magic.report import Report
    from gpumem_magic.sources.virtual.script import Scribe

MOST_RUNS = 12
"""Dry runs that `fit` makes at most."""

UNLIMITED = 2**46
"""Bytes of a card that never runs out: 64 TiB."""

_FILENAME = "<predicted cell>"
_FIRST_VALUE = 8


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest whole number for the variable `name` with which a cell fits the card.

    value: that number; 0 where even 1 runs out of memory. report: the cell predicted with it (None
    for 0), next_report: with the next number, out of memory. runs: dry runs made. exact: whether
    both were really run and differ so; otherwise `value` is the largest that was seen to fit, and
    next_report is the smallest that was seen not to, or None. notes: sentences for the user.
    """

    name: str
    value: int
    report: Report | None
    next_report: Report | None
    runs: int
    exact: bool = True
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """What was found, for a terminal of 80 columns."""
        from gpumem_magic.renderers.largest import largest_text

        return largest_text([self])

    def to_dict(self) -> dict[str, Any]:
        """What was found, and the reports that prove it, with a format number."""
        from gpumem_magic.renderers.largest import largest_to_dict

        return largest_to_dict([self])

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was found and the reports, as `Report.save` does."""
        from gpumem_magic.renderers.files import save_largest

        save_largest([self], path)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from gpumem_magic.renderers.largest import largest_html

        return {"text/plain": self.text(), "text/html": largest_html([self])}


def predict(
    source: str,
    namespace: dict[str, Any] | None = None,
    gpu: str | None = None,
    *,
    optimizer_steps: int | None = None,
    name: str = "",
) -> Report:
    """Where the memory of a cell would go on a card, told by a dry run: nothing is computed.

    source: the cell's text, in a notebook with its `!cmd` and `%magic` too. namespace: where its
    names live (default: the caller's globals); it is left exactly as it is. gpu: a card ("T4",
    "A100-80GB"), a size ("24GiB"), "cuda" or "cuda:1"; default: the card in use, a T4 where there
    is none. optimizer_steps: end every loop after so many steps of its optimizers.

    The report is one of `%%gpumem`, with `predicted` set. An error of the cell is in its `error`,
    out of memory in `oom`. Raises SyntaxError for what is no code, ValueError for an unknown card.
    """
    if namespace is None:
        namespace = sys._getframe(1).f_globals
    cell, code, cells = read_cell(source)
    return predict_cell(
        cell, code, namespace, gpu, cells=cells, optimizer_steps=optimizer_steps, name=name
    )


def fit(
    source: str,
    name: str,
    namespace: dict[str, Any] | None = None,
    gpu: str | None = None,
    *,
    optimizer_steps: int | None = None,
) -> Fit:
    """The largest whole number for the variable `name` with which the cell fits the card.

    name: a variable that the cell assigns (`name = ...`, whose value is then replaced) or that
    lives in the namespace. The others are those of `predict`. At most 12 dry runs are made.

    Raises as `predict`, and ValueError where `name` is unknown, no whole number, or without
    effect on the cell's memory, and where the cell fails otherwise than by running out of memory.
    """
    if namespace is None:
        namespace = sys._getframe(1).f_globals
    cell, code, cells = read_cell(source)
    return fit_cell(cell, code, name, namespace, gpu, cells=cells, optimizer_steps=optimizer_steps)


def predict_cell(
    cell: Cell,
    code: str,
    namespace: dict[str, Any],
    gpu: str | None,
    *,
    cells: Mapping[str, Cell] | None = None,
    optimizer_steps: int | None = None,
    values: Mapping[str, int] | None = None,
    name: str = "",
    scribe: Scribe | None = None,
    limited: bool = True,
    ignore: Collection[str] = (),
    everything: bool = False,
) -> Report:
    """`predict` for a cell that is known as typed (`cell`) and as Python code.

    cells: the other cells of the notebook by the file name of their frames. values: variables to
    set, in place of what the cell, or else the namespace, gives them. scribe: writes down what the
    allocator is asked for. limited: the card has no more memory than it has; without limit the
    cell never runs out of it. ignore, everything: see `advise`.
    """
    from gpumem_magic.advice import advise
    from gpumem_magic.report import build_report
    from gpumem_magic.sources.callsite import unfold_all
    from gpumem_magic.sources.cards import card_for, source_in_use
    from gpumem_magic.sources.virtual.dryrun import dry_run
    from gpumem_magic.trace import build_trace

    _check_syntax(code, cell.filename)
    with source_in_use() as origin:
        card = card_for(gpu, origin)
        recording, *_ = dry_run(
            cell,
            code,
            namespace,
            card if limited else replace(card, total=UNLIMITED),
            cells=cells,
            origin=origin,
            optimizer_steps=optimizer_steps,
            values=values,
            scribe=scribe,
        )
    recording = replace(recording, stacks=unfold_all(recording.stacks, cell, cells or {}))
    trace = build_trace(recording)
    advice = advise(trace, cell, recording.names, ignore=ignore, everything=everything)
    return build_report(recording, trace, name, advice)


def fit_cell(
    cell: Cell,
    code: str,
    name: str,
    namespace: dict[str, Any],
    gpu: str | None,
    *,
    cells: Mapping[str, Cell] | None = None,
    optimizer_steps: int | None = None,
) -> Fit:
    """`fit` for a cell that is known as typed (`cell`) and as Python code."""
    from gpumem_magic.fitting import Try, search, try_of
    from gpumem_magic.sources.cards import card_for, source_in_use
    from gpumem_magic.sources.virtual.rehearsal import Rehearsals
    from gpumem_magic.sources.virtual.script import Scribe

    _check_syntax(code, cell.filename)
    start = _value_now(code, name, namespace)
    with source_in_use() as origin:
        card = card_for(gpu, origin)
    reports: dict[int, Report] = {}
    scribe, rehearsals = Scribe(), Rehearsals()

    def run(value: int) -> Try:
        report = reports[value] = predict_cell(
            cell,
            code,
            namespace,
            gpu,
            cells=cells,
            optimizer_steps=optimizer_steps,
            values={name: value},
            name=f"{name} = {value}",
            scribe=scribe,
        )
        _check_outcome(report, name, value)
        rehearsals.add(value, scribe.script, fits=report.oom is None)
        return try_of(value, report)

    found = search(run, start, card.total - card.context, MOST_RUNS, rehearsals.fits)
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
        () if found.exact else (_doubt(found.value, found.failing, found.tries),),
    )


def _value_now(code: str, name: str, namespace: Mapping[str, Any]) -> int:
    """The variable's value as the cell or the namespace has it; a guess where the cell computes it.

    Raises ValueError for what cannot be fitted.
    """
    from gpumem_magic.sources.virtual.dryrun.assignments import assignments

    found = assignments(ast.parse(code), name)
    if not found and name not in namespace:
        raise ValueError(
            f"{name!r} is neither assigned in the cell nor a variable of the notebook; "
            f"a line {name} = 8 in the cell makes it one"
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


def read_cell(source: str) -> tuple[Cell, str, Mapping[str, Cell]]:
    """The cell as typed and as Python code, and the cells of the notebook that it is called in."""
    from gpumem_magic.events import Cell
    from gpumem_magic.sources.callsite import CellFiles

    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return Cell(source, _FILENAME), source, {}
    files = CellFiles(shell)
    code = shell.transform_cell(source)
    cell = replace(files.cell(source, code, 0), filename=_FILENAME, number=None)
    return cell, code, files.cells()


def _check_syntax(code: str, filename: str) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile(code, filename, "exec", flags=flags, dont_inherit=True)
