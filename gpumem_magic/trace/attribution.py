"""Who ran at each event: the line of the cell, the function it had called, the phase, the pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Action, Phase, Recording
from gpumem_magic.trace.nesting import Nesting, find_nesting, find_stretches
from gpumem_magic.trace.stacks import Stacks


@dataclass(frozen=True, slots=True)
class Attribution:
    """Columns as long as the events.

    row: int64 row of Stacks that answers for the event. line: int32 line of the cell, 0 unknown.
    phase: int8, a Phase. step: int64, number of the uninterrupted stretch of one phase: one call of
    `backward()`, one step of an optimizer. run: int64, number of the uninterrupted stretch of one
    line; events of no known line belong to the stretch they fall into. within: the same for each
    line that called functions of the cell, which are then part of it. nesting: who called whom.
    """

    row: NDArray[np.int64]
    line: NDArray[np.int32]
    phase: NDArray[np.int8]
    step: NDArray[np.int64]
    run: NDArray[np.int64]
    within: Mapping[int, NDArray[np.int64]]
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
    run = _stretches(line, line > 0)
    within = {number: _stretches(rows[row], line > 0) for number, rows in nesting.items()}
    return Attribution(row, line, phase, step, run, within, nesting)


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


def _stretches(
    state: NDArray[np.int32] | NDArray[np.bool_], known: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Number the stretches of one state; what is not known belongs to what came before it."""
    moments = np.flatnonzero(known)
    number = np.append(0, find_stretches(state[moments], np.zeros(len(moments), np.int64)) + 1)
    return np.asarray(number[np.cumsum(known)], np.int64)
