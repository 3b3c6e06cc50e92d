"""What a call stack says by itself; asked once per distinct stack, then looked up by column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    kinds = _kinds(rows)

    def column(is_kind: Callable[[_Kind], bool]) -> NDArray[np.bool_]:
        return np.array([any(is_kind(kinds[frame]) for frame in stack) for stack in rows], bool)

    return Stacks(
        line=np.array([line_of(stack, filename) or 0 for stack in rows], np.int32),
        caller=np.array([index[caller] if caller else -1 for caller in found], np.int32),
        callers=callers,
        in_backward=column(lambda kind: kind.backward),
        starts_backward=column(lambda kind: kind.makes_gradient),
        module=column(lambda kind: kind.module),
        parameter=column(lambda kind: kind.builds) & ~column(lambda kind: kind.fills),
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What one frame of torch's own Python code is doing."""

    backward: bool
    makes_gradient: bool
    module: bool
    builds: bool
    fills: bool


def _kinds(stacks: tuple[Stack, ...]) -> dict[Frame, _Kind]:
    return {frame: _kind(frame) for frame in {frame for stack in stacks for frame in stack}}


def _kind(frame: Frame) -> _Kind:
    path = frame.filename.replace("\\", "/")
    module = "torch/nn/modules/" in path
    moves = frame.function == "_apply" and path.endswith("torch/nn/modules/module.py")
    return _Kind(
        backward=path.endswith(_BACKWARD_FILES) and frame.function in _BACKWARD,
        makes_gradient=frame.function == "_make_grads" and path.endswith(_BACKWARD_FILES[0]),
        module=module,
        builds=path.endswith("torch/nn/parameter.py")
        or moves
        or (module and frame.function in _CONSTRUCTION),
        fills=path.endswith("torch/nn/init.py"),  # its scratch tensors are no parameters
    )
