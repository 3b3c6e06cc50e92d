"""Single steps of LSTM and GRU as CUDA does them: two products, and one kernel for all the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpumem_magic.virtual.traits import composite_kernel

_aten = torch.ops.aten


def lstm_cell(
    inputs: torch.Tensor,
    states: Sequence[torch.Tensor],
    weight: torch.Tensor,
    recurrent: torch.Tensor,
    bias: torch.Tensor | None = None,
    other_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """LSTMCell of native/RNN.cpp. Raises as torch does for wrong shapes."""
    hidden, cell = states
    if not _fits(inputs, hidden, weight, recurrent):
        composite_kernel(_aten.lstm_cell.default)(
            inputs, states, weight, recurrent, bias, other_bias
        )
    gates = torch.matmul(inputs, weight.t()), torch.matmul(hidden, recurrent.t())
    output, state, _ = _aten._thnn_fused_lstm_cell(*gates, cell, bias, other_bias)
    return output, state


def gru_cell(
    inputs: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    recurrent: torch.Tensor,
    bias: torch.Tensor | None = None,
    other_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """GRUCell of native/RNN.cpp. Raises as torch does for wrong shapes."""
    if not _fits(inputs, hidden, weight, recurrent):
        composite_kernel(_aten.gru_cell.default)(
            inputs, hidden, weight, recurrent, bias, other_bias
        )
    gates = torch.matmul(inputs, weight.t()), torch.matmul(hidden, recurrent.t())
    state: torch.Tensor = _aten._thnn_fused_gru_cell(*gates, hidden, bias, other_bias)[0]
    return state


def _fits(
    inputs: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, recurrent: torch.Tensor
) -> bool:
    return (
        inputs.shape[-1] == weight.shape[-1]
        and hidden.shape[-1] == recurrent.shape[-1]
        and inputs.shape[:-1] == hidden.shape[:-1]
    )


CELLS: dict[str, Callable[..., Any]] = {"lstm_cell": lstm_cell, "gru_cell": gru_cell}
"""What to register, by operator."""
