"""Who ran at each event: the line of the cell, the function it had called, the phase, the pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.cell_flow import Flow
from gpumem_magic.trace.stacks import Stacks
from gpumem_magic.values.recording import Action, Frame, Phase, Recording, Stack

Nesting = Mapping[int, NDArray[np.bool_]]
"""For each line that called functions of its own cell, the rows of Stacks in which it runs."""


def find_nesting(stacks: tuple[Stack, ...], filename: str) -> Nesting:
    """The nesting of the lines of one file; rows are those of Stacks, "no stack" the last."""
    found = [[frame.line for frame in stack if frame.filename == filename] for stack in stacks]
    outer = {line for lines in found for line in lines[1:]}
    nesting = {line: np.zeros(len(stacks) + 1, bool) for line in outer}
    for row, lines in enumerate(found):
        for line in outer.intersection(lines):
            nesting[line][row] = True
    return nesting


def find_runs(
    line: NDArray[np.int32], row: NDArray[np.int64], apart: NDArray[np.int64], nesting: Nesting
) -> NDArray[np.int64]:
    """A number for the uninterrupted run of its line that each event belongs to.

    Runs with different numbers in `apart` are never one. Numbers tell apart runs of one line only.
    """
    run = find_stretches(line, apart)
    for number, rows in nesting.items():
        own = line == number
        if own.any():
            run[own] = find_stretches(rows[row], apart)[own]
    return run


def find_stretches(
    state: NDArray[np.int32] | NDArray[np.bool_], apart: NDArray[np.int64]
) -> NDArray[np.int64]:
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
    return any(
        _loops(flows[frame.filename], frame.line)
        if frame.filename in flows
        else not _passes_through(frame)
        for frame in between
    )


def _loops(flow: Flow | None, line: int) -> bool:
    return flow is None or flow.loops(line)


def _passes_through(frame: Frame) -> bool:
    """Whether it is torch's way from `module(x)` to `module.forward(x)`, which does not repeat."""
    return frame.filename.replace("\\", "/").endswith("torch/nn/modules/module.py")


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
