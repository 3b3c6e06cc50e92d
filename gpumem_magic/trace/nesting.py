"""Which line of a cell called which: a line still runs while a function of the cell runs for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Frame, Stack
from gpumem_magic.trace.flow import Flow

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
