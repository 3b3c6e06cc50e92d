"""Recurrent layers as cuDNN runs them: one kernel for all layers, one reserve for backward.

The values are computed by torch's own CPU code, out of sight of the tracker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.sources.virtual.storages import Storages
from gpumem_magic.sources.virtual.threads import Here
from gpumem_magic.sources.virtual.traits import composite_kernel

_KEPT = {"lstm": 6, "gru": 5, "rnn_tanh": 2, "rnn_relu": 2}
"""Values per step and unit that backward needs: the gates, and the states that they lead to. cuDNN
does not publish the size of its reserve; these are what its formulas for training cannot do
without."""

_STATES = 2
"""Values per step and unit in the workspace; not published either."""


class Recurrent:
    """The layers' operators, for tensors of the device."""

    def __init__(self, storages: Storages, here: Here) -> None:
        self._storages = storages
        self._here = here

    def operators(self) -> dict[str, Callable[..., Any]]:
        """What to register, by the operator's name and overload."""
        return {
            f"{layer}.{overload}": self._layer(layer, overload)
            for layer in _KEPT
            for overload in ("input", "data")
        }

    def _layer(self, layer: str, overload: str) -> Callable[..., Any]:
        operator = getattr(getattr(torch.ops.aten, layer), overload)
        first = 1 if overload == "input" else 2  # the states' position; lengths come before them

        def run(*args: Any) -> Any:
            states = args[first]
            states = list(states) if layer == "lstm" else [states]
            for tensor in (*states, *args[first + 1]):
                if tensor not in self._storages:
                    raise _elsewhere(tensor)
            call = _Call(self._storages, self._here, operator, args, first, len(states))
            out = _Layers.apply(call, args[0], *states, *args[first + 1])  # type: ignore[no-untyped-call]
            return tuple(out)

        return run


def _elsewhere(tensor: torch.Tensor) -> RuntimeError:
    """What _cudnn_impl's checks in native/RNN.cpp raise."""
    return RuntimeError(
        "Input and parameter tensors are not at the same device, found input tensor at cuda:0 and "
        f"parameter tensor at {tensor.device}"
    )


class _Call:
    """One call of a layer's operator, handed to autograd as one value."""

    def __init__(
        self,
        storages: Storages,
        here: Here,
        operator: Any,
        args: tuple[Any, ...],
        first: int,
        states: int,
    ) -> None:
        self.storages = storages
        self.tracker = here.tracker
        self.trains: bool = args[first + 5]
        self._dropout: float = args[first + 4]
        self._operator = operator
        self._before = args[1:first]
        self._after = args[first + 2 :]
        self.states = states
        self.layers: int = args[first + 3] * (2 if args[first + 6] else 1)

    def compute(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The operator's results for these input, states and weights; in float32 where they are of
        less, as the CPU has no fast kernel for it."""
        dtype = tensors[0].dtype
        if dtype.itemsize < torch.float32.itemsize:
            computed = self.compute([tensor.float() for tensor in tensors])
            return tuple(result.to(dtype) for result in computed)
        states = tensors[1 : 1 + self.states]
        hx = states if self.states > 1 else states[0]
        weights = tensors[1 + self.states :]
        out: tuple[torch.Tensor, ...] = composite_kernel(self._operator)(
            tensors[0], *self._before, hx, weights, *self._after
        )
        return out

    @property
    def is_random(self) -> bool:
        """Whether numbers are drawn: dropout between the layers."""
        return self.trains and self._dropout > 0

    def sizes(self, tensors: Any) -> tuple[int, int]:
        """Bytes of the reserve and of the workspace."""
        data, state = tensors[0], tensors[self.states]
        steps = data.numel() // data.shape[-1]
        unit = steps * state.shape[-1] * self.layers * data.dtype.itemsize
        name = self._operator._schema.name.removeprefix("aten::")
        return unit * _KEPT[name], unit * _STATES

    def copies(self, *tensors: torch.Tensor) -> list[int]:
        """Bytes of those that cuDNN, for which steps come first, must have contiguous."""
        first = self._after[-1] is True and self._before == ()  # batch_first
        moved = [t.transpose(0, 1) if first else t for t in tensors]
        return [t.numel() * t.dtype.itemsize for t in moved if not t.is_contiguous()]

    def hold(self, sizes: list[int]) -> list[int]:
        """The addresses of new blocks; `free` gives them back."""
        return [self.storages.malloc(size) for size in sizes]

    def free(self, addresses: list[int]) -> None:
        """Give blocks back."""
        for address in reversed(addresses):
            self.storages.release(address)


class _Layers(torch.autograd.Function):
    """Saves the input, the states, the output and the reserve (_cudnn_rnn in cudnn/RNN.cpp)."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        with call.tracker.suspended(), call.tracker.random_of_device():
            ctx.random = torch.default_generator.get_state() if call.is_random else None
            computed = [t.clone() for t in call.compute(list(tensors))]
            reserve_size, workspace = call.sizes(tensors)
            reserve = torch.empty(0, dtype=torch.uint8)
            copies = call.hold(call.copies(tensors[0]))
        for result in computed:
            call.storages.place(result)
        scratch = call.hold([workspace])
        if call.trains and any(ctx.needs_input_grad):
            call.storages.place(reserve, call.storages.malloc(reserve_size))
        call.free([*copies, *scratch])
        ctx.save_for_backward(*tensors, computed[0], reserve)
        return tuple(computed)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        call: _Call = ctx.call
        if not call.trains:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        *tensors, _, _ = ctx.saved_tensors
        with call.tracker.suspended(), torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in tensors]
            with call.tracker.random_of_device(ctx.random):
                values = call.compute(inputs)
            found = torch.autograd.grad(values, inputs, gradients)
            others = 1 + call.states
            results = [*(g.clone() for g in found[:others]), *_in_one_block(found[others:])]
            scratch = call.hold(call.copies(tensors[0], gradients[0]))
        for result in results:
            call.storages.place(result)
        scratch += call.hold([call.sizes(tensors)[1]])
        call.free(scratch)
        return None, *results


def _in_one_block(gradients: Any) -> list[torch.Tensor]:
    """The weights' gradients, which are parts of one buffer."""
    buffer = torch.cat([gradient.flatten() for gradient in gradients])
    parts = buffer.split([gradient.numel() for gradient in gradients])
    return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]
