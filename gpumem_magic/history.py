"""The reports of a notebook, in order: kept, shown, compared, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.formats.files import regular
from gpumem_magic.renderers.formats.json import loads
from gpumem_magic.snapshots import SNAPSHOTS, load_snapshot
from gpumem_magic.trace.levels import NO_TIMELINE
from gpumem_magic.trace.lifetimes import LargeStorages
from gpumem_magic.trace.peak import find_places
from gpumem_magic.values.comparison import Comparison, Difference, LineDifference
from gpumem_magic.values.findings import Line
from gpumem_magic.values.recording import Category, Cell
from gpumem_magic.values.report import Report, Reports

DETAILED = 200
"""Reports that keep all that they show; older ones keep what the list of the history and
comparisons of levels and kinds need, and a note says so, but for those of an out-of-memory error.
Thousands of whole ones between the user's tensors would tear the heap to pieces."""

KEPT = 30
"""Reports of which it is known what was alive when; of older ones this is forgotten."""

KEPT_EVENTS = 2_000_000
"""Events that the latest reports, at most KEPT, hold together; each takes some 100 bytes. Two
reports keep theirs however many they are, to be compared."""


class History:
    """Every report that was appended or loaded; numbers count from 1."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._living: list[tuple[Report, LargeStorages]] = []
        self._whole: list[tuple[int, int]] = []  # place and events of those that still hold them

    @property
    def reports(self) -> tuple[Report, ...]:
        """All reports, the oldest first."""
        return tuple(self._reports)

    def append(self, report: Report, living: LargeStorages | None = None) -> None:
        """Add a report as the latest. living: what was alive when in its cell."""
        if living is not None:
            self._living = [*self._living[1 - KEPT :], (report, living)]
        self._add([report])
        old = len(self._reports) - 1 - DETAILED
        if old >= 0 and self._reports[old].oom is None:
            earlier = self._reports[max(0, old - 1)]
            self._reports[old] = _sharing(_brief(self._reports[old]), earlier)

    def clear(self) -> None:
        """Forget all reports."""
        self._reports.clear()
        self._living.clear()
        self._whole.clear()

    def living(self, report: Report) -> LargeStorages | None:
        """What was alive when in the cell of a report; None where it is not known any more."""
        return next((living for one, living in self._living if one is report), None)

    def show(self, number: int) -> Report:
        """Report `number`. Raises IndexError that says which numbers there are."""
        if 1 <= number <= len(self._reports):
            return self._reports[number - 1]
        if not self._reports:
            raise IndexError(f"there is no report {number}: the history is empty")
        raise IndexError(f"there is no report {number}: the history has 1 to {len(self._reports)}")

    def compare(self, first: int, second: int) -> Comparison:
        """What changed from report `first` to report `second`. Raises IndexError as `show`."""
        return compare(self.show(first), self.show(second), (first, second))

    def save(self, path: str | PathLike[str]) -> None:
        """Write all reports as .json, .csv, .html or .txt, or their peaks as .png or .svg.

        Raises ValueError for another suffix; a file that was there stays whole if anything fails.
        """
        self._answer.save(path)

    def load(self, path: str | PathLike[str]) -> None:
        """Append the reports of a saved .json, or those of a memory snapshot that PyTorch wrote.

        Raises ValueError that says what is wrong with the file, or OSError; the history is then as
        it was.
        """
        path = Path(path)
        if path.name.lower().endswith(SNAPSHOTS):
            self._add(load_snapshot(path))
            return
        if path.suffix.lower() != ".json":
            raise ValueError(
                f"{path}: reports are loaded from .json files, and from PyTorch's memory snapshots "
                f"({', '.join(SNAPSHOTS)})"
            )
        try:
            self._add(loads(regular(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def _add(self, reports: Iterable[Report]) -> None:
        """Append reports, and let go of the events of those that are too old, or have too many."""
        for report in reports:
            if report.basis is not None:
                self._whole.append((len(self._reports), len(report.basis.recording.events)))
            self._reports.append(report)
        while len(self._whole) > KEPT or self._too_many:
            self._forget_events(self._whole.pop(0)[0])

    @property
    def _too_many(self) -> bool:
        return len(self._whole) > 2 and sum(events for _, events in self._whole) > KEPT_EVENTS

    def _forget_events(self, place: int) -> None:
        report = self._reports[place]
        self._reports[place] = left = replace(report, basis=None)
        self._living = [(left if one is report else one, alive) for one, alive in self._living]

    def text(self) -> str:
        """One line for each report, for a terminal of 80 columns."""
        return self._answer.text()

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __getitem__(self, number: int) -> Report:
        return self.show(number)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<History of {len(self._reports)} reports>"

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return self._answer._repr_mimebundle_(include, exclude)

    @property
    def _answer(self) -> Reports:
        return Reports(self.reports)


_FORGOTTEN = f"Its lines and timeline are forgotten: the last {DETAILED} reports keep theirs."


def _brief(report: Report) -> Report:
    if not (report.lines or len(report.timeline.allocated)):
        return report
    return replace(
        report,
        cell=replace(report.cell, code=None),
        lines=(),
        blocks=(),
        advice=(),
        output="",
        timeline=NO_TIMELINE,
        notes=(*report.notes, _FORGOTTEN),
    )


def _sharing(report: Report, other: Report) -> Report:
    """The same report; whatever is equal in `other`, as where a cell runs again, is kept once."""
    cell = replace(report.cell, **_equal(report.cell, other.cell))
    return replace(report, **{**_equal(report, other), "cell": cell})


def _equal(one: Cell | Report, other: Cell | Report) -> dict[str, Any]:
    pairs = {f.name: (getattr(one, f.name), getattr(other, f.name)) for f in fields(one)}
    return {name: b for name, (a, b) in pairs.items() if a == b}


def compare(first: Report, second: Report, numbers: tuple[int, int] = (1, 2)) -> Comparison:
    """What changed from `first` to `second`."""
    frames, modules, sources = _places(first, second)
    return Comparison(
        first=first,
        second=second,
        numbers=numbers,
        levels=_levels(first, second),
        lines=_lines(first, second),
        categories=_kinds(first, second),
        frames=frames,
        modules=modules,
        sources=sources,
    )


def _levels(first: Report, second: Report) -> tuple[Difference, ...]:
    named = [
        Difference(
            f"{moment} {size}", *(getattr(getattr(r, moment), size) for r in (first, second))
        )
        for moment in ("peak", "after")
        for size in ("allocated", "reserved")
    ]
    return (*named, Difference("kept", wording.kept(first), wording.kept(second)))


def _kinds(first: Report, second: Report) -> tuple[Difference, ...]:
    pairs = [(kind, _held(first, kind), _held(second, kind)) for kind in Category]
    return tuple(Difference(kind.value, a, b) for kind, a, b in pairs if a or b)


def _places(
    first: Report, second: Report
) -> tuple[tuple[Difference, ...], tuple[Difference, ...], dict[str, str]]:
    """What changed at the peak by line of code, and by module; and the text of these lines."""
    if first.basis is None or second.basis is None:
        return (), (), {}
    a, b = find_places(first.basis), find_places(second.basis)
    frames = _changes(a.frames, b.frames)
    every = {**a.sources, **b.sources}
    sources = {one.name: every[one.name] for one in frames if every.get(one.name)}
    return frames, _changes(a.modules, b.modules), sources


def _changes(first: dict[str, int], second: dict[str, int]) -> tuple[Difference, ...]:
    every = [Difference(name, first.get(name, 0), second.get(name, 0)) for name in first | second]
    return tuple(sorted((d for d in every if d.change), key=lambda d: -abs(d.change or 0)))


def _held(report: Report, kind: Category) -> int | None:
    """Bytes of `kind` at the peak; None where nothing says what the peak was made of."""
    known = report.at_peak or report.peak.allocated == 0
    return report.at_peak.get(kind, 0) if known else None


def _lines(first: Report, second: Report) -> tuple[LineDifference, ...]:
    """Equal lines pair up in order; those that only the first cell has come last."""
    left: dict[str | int, list[Line]] = {}
    for line in first.lines:
        left.setdefault(_known_by(line), []).append(line)
    pairs = []
    for line in second.lines:
        rest = left.get(_known_by(line))
        pairs.append(LineDifference(wording.line_text(line), rest.pop(0) if rest else None, line))
    gone = (line for lines in left.values() for line in lines)
    return (*pairs, *(LineDifference(wording.line_text(line), line, None) for line in gone))


def _known_by(line: Line) -> str | int:
    """Its text; its number where the text is not known, as in a snapshot from elsewhere."""
    return wording.line_text(line) or line.number
