"""Who ran at each event: the line of the cell, the function it had called, the phase, the pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.cell_flow import Flow
from gpumem_magic.trace.stacks import Stacks
from gpumem_magic.values.recording import Action, Frame, Phase, Recording, Stack


@dataclass(frozen=True, slots=True)
class Nesting:
    """Which lines of one file called functions of that file: a column of such lines, in order, and
    one of the rows of Stacks in which each runs, itself or what it called."""

    line: NDArray[np.int64]
    row: NDArray[np.int64]

    def rows_of(self, line: int) -> NDArray[np.int64]:
        """The rows in which a line runs; none for a line that called no function of its file."""
        begin, end = np.searchsorted(self.line, (line, line + 1))
        return self.row[begin:end]

    def runs(self, row: NDArray[np.int64], apart: NDArray[np.int64]) -> Runs:
        """The uninterrupted runs of all its lines, of events that these rows answer for.

        Events with different numbers in `apart` are never of one run.
        """
        order = np.argsort(row, kind="stable")
        begins, ends = (np.searchsorted(row[order], self.row, side) for side in ("left", "right"))
        many = ends - begins
        first = np.repeat(begins - np.cumsum(many) + many, many)
        event = order[first + np.arange(len(first))]
        line = np.repeat(self.line, many)
        sort = np.lexsort((event, line))
        line, event = line[sort], event[sort]
        joined = (line[1:] == line[:-1]) & (np.diff(event) == 1)
        joined &= apart[event[1:]] == apart[event[:-1]]
        return Runs(len(row), line, event, np.cumsum(np.append(0, ~joined))[: len(line)])


@dataclass(frozen=True, slots=True)
class Runs:
    """Columns, in the order of lines and then of events: which event of so many belongs to which
    run of each line. Numbers tell apart runs of one line only."""

    events: int
    line: NDArray[np.int64]
    event: NDArray[np.int64]
    run: NDArray[np.int64]

    def at(self, line: NDArray[Any], event: NDArray[np.int64]) -> NDArray[np.int64]:
        """The run of each of these lines that each of these events belongs to; -1: none."""
        key = self.line * self.events + self.event
        wanted = line.astype(np.int64) * self.events + event
        if not len(key):
            return np.full(len(wanted), -1)
        place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        return np.where(key[place] == wanted, self.run[place], -1)

    def count(self, line: int) -> int:
        """How many runs a line has."""
        begin, end = np.searchsorted(self.line, (line, line + 1))
        return int(self.run[end - 1] - self.run[begin]) + 1 if end > begin else 0


def find_nesting(stacks: tuple[Stack, ...], filename: str) -> Nesting:
    """The nesting of the lines of one file."""
    found = [[frame.line for frame in stack if frame.filename == filename] for stack in stacks]
    outer = {line for lines in found for line in lines[1:]}
    pairs = {(line, row) for row, lines in enumerate(found) for line in lines if line in outer}
    line, row = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    return Nesting(line, row)


def find_runs(
    line: NDArray[np.int32], row: NDArray[np.int64], apart: NDArray[np.int64], nesting: Nesting
) -> NDArray[np.int64]:
    """A number for the uninterrupted run of its line that each event belongs to.

    Runs with different numbers in `apart` are never one. Numbers tell apart runs of one line only.
    """
    nested = nesting.runs(row, apart).at(line, np.arange(len(line)))
    return np.where(nested >= 0, nested, find_stretches(line, apart))


def find_stretches(state: NDArray[np.int32], apart: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the stretches in which neither column changes."""
    begins = np.zeros(len(state), np.int64)
    begins[1:] = (state[1:] != state[:-1]) | (apart[1:] != apart[:-1])
    return np.cumsum(begins)


def find_repeated(stacks: tuple[Stack, ...], flows: Mapping[str, Flow | None]) -> NDArray[np.bool_]:
    """For each row of Stacks: whether a loop, of a cell or of a library, may be what runs it.

    flows: of the cells, by the filename of their frames.
    """
    return np.array([*(_is_repeated(stack, flows) for stack in stacks), False], bool)


def _is_repeated(stack: Stack, flows: Mapping[str, Flow | None]) -> bool:
    known = [i for i, frame in enumerate(stack) if frame.filename in flows]
    if not known:
        return False
    between = stack[known[0] : known[-1] + 1]
    return any(_may_loop(frame, flows) for frame in between)


def _may_loop(frame: Frame, flows: Mapping[str, Flow | None]) -> bool:
    """All but lines of cells outside of loops, and torch's way from `module(x)` to its forward."""
    if frame.filename not in flows:
        return not frame.filename.replace("\\", "/").endswith("torch/nn/modules/module.py")
    flow = flows[frame.filename]
    return flow is None or flow.loops(frame.line)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Columns as long as the events.

    row: int64 row of Stacks that answers for the event. line: int32 line of the cell, 0 unknown.
    phase: int8, a Phase. step: int64, number of the uninterrupted stretch of one phase: one call of
    `backward()`, one step of an optimizer. run: int64, number of the uninterrupted stretch of one
    line; events of no known line belong to the stretch they fall into. known: int64, how many
    events up to this one have a known line, less one. within: the runs of each line that called
    functions of the cell, which are then part of it, over the known ones. nesting: who called whom.
    """

    row: NDArray[np.int64]
    line: NDArray[np.int32]
    phase: NDArray[np.int8]
    step: NDArray[np.int64]
    run: NDArray[np.int64]
    known: NDArray[np.int64]
    within: Runs
    nesting: Nesting


def attribute(recording: Recording, stacks: Stacks) -> Attribution:
    """Look up who ran at each event.

    Autograd's device threads have no Python stack: what they allocate belongs to the line, and the
    function, that called the `backward()` they work for.
    """
    events = recording.events
    row = np.where(events.stack < 0, len(stacks.line) - 1, events.stack).astype(np.int64)
    inside = stacks.in_backward[row] & (events.phase == Phase.FORWARD)
    phase = np.where(inside, np.int8(Phase.BACKWARD), events.phase)
    step = _steps(recording, stacks, phase)
    known = (stacks.line[row] > 0) | (stacks.caller[row] >= 0)
    orphans = np.flatnonzero((phase == Phase.BACKWARD) & ~known)
    if len(orphans):
        parent = _first_of_step(step, known)[step[orphans]]
        row[orphans] = np.where(parent >= 0, row[parent], row[orphans])
    line = stacks.line[row]
    nesting = find_nesting(recording.stacks, recording.cell.filename)
    moments = np.flatnonzero(line > 0)
    so_far = np.cumsum(line > 0) - 1
    alone = np.zeros(len(moments), np.int64)
    run = np.append(find_stretches(line[moments], alone), -1)[so_far]
    within = nesting.runs(row[moments], alone)
    return Attribution(row, line, phase, step, run, so_far, within, nesting)


def _steps(recording: Recording, stacks: Stacks, phase: NDArray[np.int8]) -> NDArray[np.int64]:
    """Number the stretches of one phase; a new `backward()` begins one even right after another.

    Only births and deaths begin one: what the allocator does to its segments has no phase.
    """
    events = recording.events
    moments = np.flatnonzero((events.action == Action.ALLOC) | (events.action == Action.FREE))
    phases, starts = phase[moments], stacks.starts_backward[events.stack[moments]]
    begins = np.zeros(len(events), np.int64)
    begins[moments[1:]] = (phases[1:] != phases[:-1]) | (starts[1:] & ~starts[:-1])
    return np.cumsum(begins)


def _first_of_step(step: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each step its first event that is known to belong to a line, or -1."""
    first = np.full(int(step[-1]) + 1, -1, np.int64)
    events = np.flatnonzero(known)[::-1]
    first[step[events]] = events
    return first
