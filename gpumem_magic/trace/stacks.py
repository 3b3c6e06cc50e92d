"""What a call stack says by itself; asked once per distinct stack, then looked up by column."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.sources.stacks.callsite import call_of, line_of
from gpumem_magic.values.recording import Cell, Frame, Recording, Stack

Caller = tuple[Cell, int, str]
"""A function of another cell that was running: its cell, line and name."""

_BACKWARD_FILES = ("torch/autograd/__init__.py", "torch/autograd/graph.py", "torch/_tensor.py")
_BACKWARD = frozenset({"backward", "grad", "_make_grads", "_engine_run_backward"})
_CONSTRUCTION = frozenset({"__init__", "reset_parameters"})


@dataclass(frozen=True, slots=True)
class Stacks:
    """Columns with one row per distinct stack, and a last one for "no stack is known" (index -1).

    line: int32 line of the cell (0: none). caller: int32 index into `callers`, or -1. in_backward,
    starts_backward: inside `backward()`, and where it makes its first gradient. module: below a
    frame of torch.nn.modules. parameter: where a module or a parameter is built or moved.
    """

    line: NDArray[np.int32]
    caller: NDArray[np.int32]
    callers: tuple[Caller, ...]
    in_backward: NDArray[np.bool_]
    starts_backward: NDArray[np.bool_]
    module: NDArray[np.bool_]
    parameter: NDArray[np.bool_]


def read_stacks(recording: Recording) -> Stacks:
    """Ask every distinct stack of the recording once."""
    rows = (*recording.stacks, ())
    filename = recording.cell.filename
    found = [call_of(stack, filename, recording.cells) for stack in rows]
    callers = tuple(dict.fromkeys(caller for caller in found if caller))
    index = {caller: i for i, caller in enumerate(callers)}
    kinds = {frame: _kind(frame) for frame in {frame for stack in rows for frame in stack}}
    kind = np.array([reduce(or_, map(kinds.__getitem__, stack), 0) for stack in rows], np.int8)

    def has(one: _Kind) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (kind & one) > 0
        return found

    return Stacks(
        line=np.array([line_of(stack, filename) or 0 for stack in rows], np.int32),
        caller=np.array([index[caller] if caller else -1 for caller in found], np.int32),
        callers=callers,
        in_backward=has(_Kind.BACKWARD),
        starts_backward=has(_Kind.MAKES_GRADIENT),
        module=has(_Kind.MODULE),
        parameter=has(_Kind.BUILDS) & ~has(_Kind.FILLS),
    )


class _Kind(IntFlag):
    """What a frame of torch's own Python code is doing."""

    BACKWARD = 1
    MAKES_GRADIENT = 2
    MODULE = 4
    BUILDS = 8
    FILLS = 16
    """torch.nn.init: its scratch tensors are no parameters."""


def _kind(frame: Frame) -> int:
    path = frame.filename.replace("\\", "/")
    module = "torch/nn/modules/" in path
    moves = frame.function == "_apply" and path.endswith("torch/nn/modules/module.py")
    builds = path.endswith("torch/nn/parameter.py") or moves
    builds = builds or (module and frame.function in _CONSTRUCTION)
    first = frame.function == "_make_grads" and path.endswith(_BACKWARD_FILES[0])
    found = {
        _Kind.BACKWARD: path.endswith(_BACKWARD_FILES) and frame.function in _BACKWARD,
        _Kind.MAKES_GRADIENT: first,
        _Kind.MODULE: module,
        _Kind.BUILDS: builds,
        _Kind.FILLS: path.endswith("torch/nn/init.py"),
    }
    return sum(int(kind) for kind, true in found.items() if true)


def user_line(recording: Recording, frames: Stack) -> tuple[int | None, str]:
    """The user's innermost line, and "" for the cell itself or the name of another one."""
    for frame in frames:
        if frame.filename == recording.cell.filename:
            return frame.line, ""
        if (other := recording.cells.get(frame.filename)) is not None:
            return frame.line, other.title
    return None, ""


class Texts:
    """The texts of cells' lines; each cell is split once, however many of them are asked for."""

    def __init__(self) -> None:
        self._lines: dict[Cell, list[str]] = {}

    def line(self, cell: Cell, number: int) -> str:
        """A line without the white space around it; "" where the cell has none of that number."""
        if cell not in self._lines:
            self._lines[cell] = cell.source.splitlines()
        lines = self._lines[cell]
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""
