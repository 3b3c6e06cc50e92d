"""Recurrent layers as cuDNN runs them: weights in one buffer, one kernel for all layers, one
reserve for backward.

The values are computed by torch's own CPU code, out of sight of the tracker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.kernels import recurrent_steps
from gpumem_magic.virtual.kernels.recurrent_kernel import Call, Device, Layers
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda.threads import Here
from gpumem_magic.virtual.traits import composite_kernel
from gpumem_magic.virtual.workspaces.recurrent_weights import GATES, Layout
from gpumem_magic.virtual.workspaces.reductions import Processors
from gpumem_magic.virtual.workspaces.scratch import ScratchMemory

_TYPES = (torch.float16, torch.float32, torch.float64)
"""What cuDNN takes on every card (cudnn_is_acceptable in native/cudnn); bfloat16 from compute
capability 8.0 on (supportsBFloat16RNNWithCuDNN in cuda/detail/CUDAHooks.cpp)."""

_MEASURED = (9, 0)
"""The compute capability from which on sizes are those that an H200 was seen to ask for."""

_GENERATORS = {True: 24, False: 48}
"""Bytes that cuDNN's dropout keeps for each thread that can be resident: where that was measured,
and of one of cuRAND's default generators."""


class Recurrent:
    """The layers' operators, for tensors of the device. Like torch, it keeps one state of random
    numbers for dropout between layers, from its first use on."""

    def __init__(
        self, storages: Storages, here: Here, card: GPUModel, scratch: ScratchMemory
    ) -> None:
        self._storages = storages
        self._here = here
        self._scratch = scratch
        self._capability = card.capability
        processors = Processors.of(card.multiprocessors, card.capability)
        self._is_measured = card.capability >= _MEASURED
        self._states = _GENERATORS[self._is_measured] * processors.count * processors.threads

    def install(self, patches: Patches) -> None:
        """Let modules hand their weights over, as they do to cuDNN."""
        asked = import_module("torch.backends.cudnn.rnn")  # the name is another thing in torch 2.9
        modes = {layer.upper(): mode for mode, layer in enumerate(GATES)}
        patches.set(torch.backends.cudnn, "is_acceptable", self._is_acceptable)
        patches.set(asked, "get_cudnn_mode", modes.__getitem__)
        patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
        patches.set(torch, "_cudnn_rnn_flatten_weight", self._flatten)

    def operators(self) -> dict[str, Callable[..., Any]]:
        """What to register, by the operator's name and overload."""
        return {
            f"{layer}.{overload}": self._layer(layer, overload)
            for layer in GATES
            for overload in ("input", "data")
        }

    def _device(self) -> Device:
        return Device(self._storages, self._here.tracker, self._is_measured)

    def _is_acceptable(self, tensor: torch.Tensor) -> bool:
        """torch.backends.cudnn.is_acceptable: whether a module may flatten its weights."""
        is_on: bool = torch._C._get_cudnn_enabled()
        return is_on and tensor.dtype in _TYPES and tensor in self._storages

    def _is_supported(self, tensor: torch.Tensor) -> bool:
        """use_cudnn in native/RNN.cpp."""
        known = tensor.dtype in _TYPES or (
            tensor.dtype is torch.bfloat16 and self._capability >= (8, 0)
        )
        return known and tensor.numel() > 0 and bool(torch._C._get_cudnn_enabled())

    def _flatten(self, weights: Sequence[torch.Tensor], each: int, *extents: Any) -> torch.Tensor:
        """torch._cudnn_rnn_flatten_weight: a buffer of all weights, which from here on are parts of
        it (copy_weights_to_flat_buf_views in cudnn/RNN.cpp)."""
        inputs, mode, hidden, projected, layers, _, bidirectional = extents
        gates = list(GATES.values())[mode]
        layout = Layout(gates, inputs, hidden, projected, layers, 1 + bidirectional)
        buffer = weights[0].new_zeros(layout.numel)
        places = layout.views(buffer, each)
        for weight, place in zip(weights, places, strict=True):
            place.copy_(weight)
        for weight, place in zip(weights, places, strict=True):
            weight.data = place
        return buffer

    def _layer(self, layer: str, overload: str) -> Callable[..., Any]:
        operator = getattr(getattr(torch.ops.aten, layer), overload)
        first = 1 if overload == "input" else 2  # the states' position; lengths come before them

        def run(*args: Any) -> Any:
            states = list(args[first]) if layer == "lstm" else [args[first]]
            weights = args[first + 1]
            for tensor in (*states, *weights):
                if tensor not in self._storages:
                    raise _elsewhere(tensor)
            if not self._is_supported(args[0]):
                plain = (4 if args[3] else 2) * len(states[0])  # weights, without projections
                if overload == "input" and len(weights) == plain:
                    return recurrent_steps.layers(layer, recurrent_steps.Asked(*args))
                with torch.backends.mkldnn.flags(enabled=False):  # the host's own layer
                    return composite_kernel(operator)(*args)
            call = Call(self._device(), operator, args, first)
            tensors = [args[0], *states, *weights]
            if call.is_random:
                self._scratch.hold_dropout_states(self._states)
            if torch.is_autocast_enabled("cuda"):
                tensors = _cast(call.layout, call.each, len(states), tensors)
            return tuple(Layers.apply(call, *tensors))  # type: ignore[no-untyped-call]

        return run


def _cast(
    layout: Layout, each: int, states: int, tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Autocast's copies, of float16 whatever type is asked for: weights go into a new buffer
    (_cudnn_rnn_cast_reflatten in cudnn/AutocastRNN.cpp)."""
    others, weights = tensors[: 1 + states], tensors[1 + states :]
    if weights[0].dtype is torch.float32:
        places = layout.views(weights[0].new_zeros(layout.numel, dtype=torch.float16), each)
        weights = [place.copy_(w) for place, w in zip(places, weights, strict=True)]
    halves = [t.to(torch.float16) for t in reversed(others)]  # C++ looks at the last one first
    return [*reversed(halves), *weights]


def _elsewhere(tensor: torch.Tensor) -> RuntimeError:
    """What check_attributes in native/RNN.h raises."""
    return RuntimeError(
        "Input and parameter tensors are not at the same device, found input tensor at cuda:0 and "
        f"parameter tensor at {tensor.device}"
    )
