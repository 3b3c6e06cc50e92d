"""What CUDA does of an LSTM's or GRU's step in one kernel, which keeps what backward needs in a
buffer of its own: the values, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.workspaces.scratch import Args, ScratchMemory

_Tensors = tuple[torch.Tensor, ...]


def _fused_lstm(
    of_inputs: torch.Tensor,
    of_hidden: torch.Tensor,
    cell: torch.Tensor,
    bias: torch.Tensor | None = None,
    other_bias: torch.Tensor | None = None,
) -> _Tensors:
    """lstm_cell_forward of native/cuda/RNN.cu: the output, the state, and the gates."""
    gates = (_with(of_inputs, bias) + _with(of_hidden, other_bias)).chunk(4, -1)
    i, f, o = (torch.sigmoid(gates[k]) for k in (0, 1, 3))
    g = torch.tanh(gates[2])
    state = f * cell + i * g
    return o * torch.tanh(state), state, torch.cat([i, f, g, o], -1)


def _fused_lstm_backward(
    of_output: torch.Tensor | None,
    of_state: torch.Tensor | None,
    cell: torch.Tensor,
    state: torch.Tensor,
    gates: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    """lstm_cell_backward, in the same file: gradients of the gates, the state and the bias."""
    i, f, g, o = gates.chunk(4, -1)
    bent = torch.tanh(state)
    output = torch.zeros_like(state) if of_output is None else of_output
    through = output * o * (1 - bent * bent)
    through = through if of_state is None else through + of_state
    slopes = torch.cat(
        [
            through * g * i * (1 - i),
            through * cell * f * (1 - f),
            through * i * (1 - g * g),
            output * bent * o * (1 - o),
        ],
        -1,
    )
    return slopes, through * f, slopes.sum(0) if has_bias else None


def _fused_gru(
    of_inputs: torch.Tensor,
    of_hidden: torch.Tensor,
    hidden: torch.Tensor,
    bias: torch.Tensor | None = None,
    other_bias: torch.Tensor | None = None,
) -> _Tensors:
    """gru_cell_forward, in the same file: the state, and five values for each of its units."""
    mine, its = _with(of_inputs, bias).chunk(3, -1), _with(of_hidden, other_bias).chunk(3, -1)
    reset, update = torch.sigmoid(mine[0] + its[0]), torch.sigmoid(mine[1] + its[1])
    new = torch.tanh(mine[2] + reset * its[2])
    kept = torch.cat([reset, update, new, hidden, its[2]], -1)
    return new + update * (hidden - new), kept


def _fused_gru_backward(
    of_state: torch.Tensor, kept: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """gru_cell_backward, in the same file: gradients of both gates, the state and both biases."""
    reset, update, new, hidden, its = kept.chunk(5, -1)
    of_new = of_state * (1 - update) * (1 - new * new)
    of_reset = of_new * its * (1 - reset) * reset
    of_update = of_state * (hidden - new) * (1 - update) * update
    mine = torch.cat([of_reset, of_update, of_new], -1)
    theirs = torch.cat([of_reset, of_update, of_new * reset], -1)
    biases = (mine.sum(0), theirs.sum(0)) if has_bias else (None, None)
    return mine, theirs, of_state * update, *biases


def _with(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


FUSED: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _fused_lstm,
    "_thnn_fused_lstm_cell_backward_impl": _fused_lstm_backward,
    "_thnn_fused_gru_cell": _fused_gru,
    "_thnn_fused_gru_cell_backward": _fused_gru_backward,
}
"""Operators that torch has for CUDA alone, by name."""


def place_results(memory: ScratchMemory, args: Args, out: _Tensors) -> None:
    """The buffer for backward, which is the last result, comes first."""
    memory.place(out[-1], *out[:-1])


def place_gradients(memory: ScratchMemory, args: Args, out: tuple[Any, ...]) -> None:
    """The biases' gradients are sums of the first ones."""
    gates, rest = (out[:1], out[1:]) if len(out) == _LSTM else (out[:2], out[2:])
    memory.place(*gates, rest[0])
    for summed, bias in zip(gates, rest[1:], strict=True):
        if bias is not None:
            memory.place(bias)
            memory.reduce(summed, [0], "sum")


_LSTM = 3  # gradients of an LSTM's cell; a GRU's has two kinds of gates, and two biases
