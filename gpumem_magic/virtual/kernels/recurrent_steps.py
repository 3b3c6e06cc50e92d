"""Recurrent layers that cuDNN does not run, as torch then does them on a GPU: step by step
(native/RNN.cpp). The host's own way makes the products of all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gpumem_magic.virtual.traits import composite_kernel

_Step = Callable[[torch.Tensor, Any, Sequence[torch.Tensor]], tuple[torch.Tensor, Any]]
"""Given input, state and weights: the output and the next state."""


def _lstm(x: torch.Tensor, state: Any, weights: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    output, cell = lstm_cell(x, state, *weights)
    return output, (output, cell)


def _gru(x: torch.Tensor, state: Any, weights: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    output = gru_cell(x, state, *weights)
    return output, output


def _simple(bend: Callable[[torch.Tensor], torch.Tensor]) -> _Step:
    def step(x: torch.Tensor, state: Any, weights: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        own, recurrent, *biases = weights
        bias, other = biases or (None, None)
        summed = torch.nn.functional.linear(state, recurrent, other)
        output = bend(summed.add_(torch.nn.functional.linear(x, own, bias)))
        return output, output

    return step


_STEPS: dict[str, _Step] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": _simple(torch.tanh),
    "rnn_relu": _simple(torch.relu),
}


class Asked(NamedTuple):
    """The arguments of `torch.lstm` and its like for padded sequences."""

    inputs: torch.Tensor
    states: Any
    weights: Sequence[torch.Tensor]
    has_biases: bool
    depth: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


def layers(layer: str, asked: Asked) -> tuple[torch.Tensor, ...]:
    """The results of `torch.lstm` and its like, of layers without projections."""
    inputs, states, weights, has_biases, depth, dropout, train, bidirectional, batch_first = asked
    is_lstm = layer == "lstm"
    begin = list(zip(*(s.unbind(0) for s in states), strict=True)) if is_lstm else states.unbind(0)
    each = 4 if has_biases else 2
    own = [weights[i : i + each] for i in range(0, len(weights), each)]
    x = inputs.transpose(0, 1) if batch_first else inputs
    ends: list[Any] = []
    directions = 1 + bidirectional
    for k in range(depth):
        outputs = []
        for d in range(directions):
            place = k * directions + d
            output, end = _one(_STEPS[layer], x, begin[place], own[place], backwards=d == 1)
            outputs.append(output)
            ends.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and k < depth - 1:
            x = torch.dropout(x, dropout, True)
        del outputs, output
    x = x.transpose(0, 1) if batch_first else x
    last = zip(*ends, strict=True) if is_lstm else [ends]
    return x, *(torch.stack(list(parts)) for parts in last)


def _one(
    step: _Step, inputs: torch.Tensor, state: Any, weights: Sequence[torch.Tensor], backwards: bool
) -> tuple[torch.Tensor, Any]:
    """One layer in one direction: its outputs, and the state that it ends in."""
    outputs = []
    for x in reversed(inputs.unbind(0)) if backwards else inputs.unbind(0):
        output, state = step(x, state, weights)
        outputs.append(output)
    return torch.stack(outputs[::-1] if backwards else outputs), state


_aten = torch.ops.aten


def lstm_cell(
    inputs: torch.Tensor,
    states: Sequence[torch.Tensor],
    *weights: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """LSTMCell of native/RNN.cpp. Raises as torch does for wrong shapes."""
    gates = _gates(_aten.lstm_cell.default, inputs, states, states[0], *weights)
    output, state, _ = _aten._thnn_fused_lstm_cell(*gates, states[1], *weights[2:])
    return output, state


def gru_cell(
    inputs: torch.Tensor, hidden: torch.Tensor, *weights: torch.Tensor | None
) -> torch.Tensor:
    """GRUCell of native/RNN.cpp. Raises as torch does for wrong shapes."""
    gates = _gates(_aten.gru_cell.default, inputs, hidden, hidden, *weights)
    state: torch.Tensor = _aten._thnn_fused_gru_cell(*gates, hidden, *weights[2:])[0]
    return state


def _gates(
    operator: Any, inputs: torch.Tensor, states: Any, hidden: torch.Tensor, *weights: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the inputs and the hidden state come to. weights: of both, and perhaps two biases."""
    weight, recurrent = weights[:2]
    fits = inputs.shape[-1] == weight.shape[-1] and hidden.shape[-1] == recurrent.shape[-1]
    if not fits or inputs.shape[:-1] != hidden.shape[:-1]:
        composite_kernel(operator)(inputs, states, *weights)
    return torch.matmul(inputs, weight.t()), torch.matmul(hidden, recurrent.t())


CELLS: dict[str, Callable[..., Any]] = {"lstm_cell": lstm_cell, "gru_cell": gru_cell}
"""What to register, by operator."""
