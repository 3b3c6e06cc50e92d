"""Bytes by line of the cell, and below each line by the functions of other cells that it called."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import (
    Attribution,
    Nesting,
    find_nesting,
    find_repeated,
    find_runs,
)
from gpumem_magic.trace.cell_flow import Parse, read_flow
from gpumem_magic.trace.levels import Levels
from gpumem_magic.trace.passes import Visits, count_passes
from gpumem_magic.trace.stacks import Stacks, Texts
from gpumem_magic.values.findings import Call, Called, Line
from gpumem_magic.values.recording import Action, Cell, Events, Recording


@dataclass(frozen=True, slots=True)
class _Sums:
    """Bytes by row of Stacks: int64 columns. peak is -1 where a row has no event."""

    allocated: NDArray[np.int64]
    freed: NDArray[np.int64]
    peak: NDArray[np.int64]

    def of(self, rows: NDArray[np.int64]) -> tuple[int, int, int]:
        allocated, freed = int(self.allocated[rows].sum()), int(self.freed[rows].sum())
        return allocated, freed, int(self.peak[rows].max())

    def of_groups(
        self, rows: NDArray[np.int64], first: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], ...]:
        """The same for stretches of rows, which begin at these places."""
        if not len(rows):
            return rows, rows, rows
        sums = (np.add.reduceat(column[rows], first) for column in (self.allocated, self.freed))
        return *sums, np.maximum.reduceat(self.peak[rows], first)


class _Counter:
    """Counts passes; reads each source and each file's nesting once."""

    def __init__(self, recording: Recording, stacks: Stacks, parse: Parse) -> None:
        self._recording = recording
        self._stacks = stacks
        self.texts = Texts()
        files = {frame.filename for stack in recording.stacks for frame in stack}
        known = {name: recording.cells[name] for name in files & recording.cells.keys()}
        known |= {this.filename: this for this in (recording.cell,) if this.filename in files}
        self._flows = {name: read_flow(parse(cell)) for name, cell in known.items()}
        self._repeated = find_repeated(recording.stacks, self._flows)
        self._nesting: dict[str, Nesting] = {}
        self._lines: dict[str, NDArray[np.int32]] = {}

    def count(self, cell: Cell, visits: Visits) -> dict[int, int]:
        """How often each line of the cell ran, given its visits."""
        raised = self._recording.error is not None
        return count_passes(visits, self._flows.get(cell.filename), self._repeated, raised)

    def count_in(self, cell: Cell, visits: Visits) -> dict[int, int]:
        """How often each line of another cell ran during these visits to a line of this one."""
        name = cell.filename
        if name not in self._nesting:
            self._nesting[name] = find_nesting(self._recording.stacks, name)
            callers = self._stacks.callers
            lines = [line if caller == cell else 0 for caller, line, _ in callers]
            self._lines[name] = np.array([*lines, 0], np.int32)
        line = self._lines[name][self._stacks.caller[visits.row]]
        run = find_runs(line, visits.row, visits.run, self._nesting[name])
        return self.count(cell, replace(visits, line=line, run=run))


def find_lines(
    recording: Recording,
    stacks: Stacks,
    attribution: Attribution,
    levels: Levels,
    visits: Visits,
    parse: Parse,
) -> tuple[Line, ...]:
    """Every line with at least one event, its own or of a line that it called, by number; number 0
    has what no line can be named for."""
    sums = _sum_rows(recording.events, attribution, levels, len(stacks.line))
    counter = _Counter(recording, stacks, parse)
    counts = counter.count(recording.cell, visits)
    order = np.argsort(visits.line, kind="stable")
    lines, text = [], counter.texts.line
    calling = {*attribution.nesting.line.tolist()}
    known = np.flatnonzero(sums.peak >= 0)
    known = known[np.argsort(stacks.line[known], kind="stable")]
    numbers, first = np.unique(stacks.line[known], return_index=True)
    begins = np.searchsorted(visits.line[order], numbers)
    ends = np.searchsorted(visits.line[order], numbers, side="right")
    columns = (*sums.of_groups(known, first), np.append(first, len(known))[1:], first, begins, ends)
    for number, *sizes, last, start, begin, end in zip(
        numbers.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        rows = known[start:last]
        calls = _find_calls(rows, sums, stacks, visits, order[begin:end], counter)
        allocated, freed, peak = sizes
        called = _called(number, sums, stacks, attribution) if number in calling else None
        net, count = allocated - freed, counts.get(number, 1)
        source = text(recording.cell, number)
        lines.append(Line(number, source, allocated, freed, net, peak, count, calls, called))
    for number in np.setdiff1d(attribution.nesting.line, numbers).tolist():
        if called := _called(number, sums, stacks, attribution):
            count = attribution.within.count(number)
            source = text(recording.cell, number)
            lines.append(Line(number, source, 0, 0, 0, None, count, called=called))
    return tuple(sorted(lines, key=lambda line: line.number))


def _called(number: int, sums: _Sums, stacks: Stacks, attribution: Attribution) -> Called | None:
    """What lines of the cell did that this one had called."""
    inside = attribution.nesting.rows_of(number)
    rows = inside[(stacks.line[inside] != number) & (sums.peak[inside] >= 0)]
    return Called(*sums.of(rows)) if len(rows) else None


def _find_calls(
    rows: NDArray[np.int64],
    sums: _Sums,
    stacks: Stacks,
    visits: Visits,
    own: NDArray[np.int64],
    counter: _Counter,
) -> tuple[Call, ...]:
    """The functions of other cells that one line called, by their cell and line.

    own: the visits of the line.
    """
    callers = stacks.caller[rows]
    if callers.max(initial=-1) < 0:
        return ()
    calls, visits = [], visits[own]
    counted: dict[Cell, dict[int, int]] = {}
    for index in np.unique(callers[callers >= 0]).tolist():
        cell, number, function = stacks.callers[index]
        if cell not in counted:
            counted[cell] = counter.count_in(cell, visits)
        allocated, freed, peak = sums.of(rows[callers == index])
        count = counted[cell].get(number, 1)
        text = counter.texts.line(cell, number)
        net = allocated - freed
        sizes = allocated, freed, net, peak, count
        calls.append(Call(cell.number, number, function, text, *sizes, cell.name))
    return tuple(sorted(calls, key=lambda call: (call.cell or 0, call.line)))


def _sum_rows(events: Events, attribution: Attribution, levels: Levels, rows: int) -> _Sums:
    """Add up by row; the level while an event's line ran is that before it, then that after it."""
    allocated, freed = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for total, action in ((allocated, Action.ALLOC), (freed, Action.FREE)):
        moments = np.flatnonzero(events.action == action)
        np.add.at(total, attribution.row[moments], events.size[moments])
    peak = np.full(rows, -1, np.int64)
    moments = np.flatnonzero(events.action != Action.FREE_COMPLETED)
    level = np.maximum(levels.allocated[moments], levels.allocated[moments + 1])
    np.maximum.at(peak, attribution.row[moments], level)
    return _Sums(allocated, freed, peak)
