"""One call of cuDNN's recurrent layer, forward and backward: what it takes, in the order of
native/cudnn/RNN.cpp."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gpumem_magic.virtual.kernels.recurrent_space import Space
from gpumem_magic.virtual.storages import Blocks, Storages
from gpumem_magic.virtual.tracker import Tracker
from gpumem_magic.virtual.traits import composite_kernel
from gpumem_magic.virtual.workspaces.recurrent_weights import GATES, Layout


class Device(NamedTuple):
    """Where a layer runs. is_measured: see `Space`."""

    storages: Storages
    tracker: Tracker
    is_measured: bool


class Call:
    """One call of a layer's operator, handed to autograd as one value.

    args: the operator's; first: the position of the states among them.
    """

    def __init__(self, device: Device, operator: Any, args: tuple[Any, ...], first: int) -> None:
        self.storages = device.storages
        self.tracker = device.tracker
        self._operator = operator
        self._before, self._after = args[1:first], args[first + 2 :]
        has_biases, layers, self._dropout, self.trains, bidirectional = self._after[:5]
        self.batch_first: bool = self._after[-1] if first == 1 else False
        states = args[first] if isinstance(args[first], (list, tuple)) else [args[first]]
        self.states = len(states)
        output, hidden = states[0].shape[2], states[-1].shape[2]
        projected = 0 if output == hidden else output
        self.each = (4 if has_biases else 2) + bool(projected)
        gates = GATES[operator._schema.name.removeprefix("aten::")]
        self.layout = Layout(
            gates, args[0].shape[-1], hidden, projected, layers, 1 + bool(bidirectional)
        )
        batch = states[0].shape[1]
        steps = args[0].shape[int(self.batch_first)] if first == 1 else args[1].shape[0]
        self.space = Space(
            self.layout,
            batch,
            steps,
            steps * batch if first == 1 else args[0].shape[0],
            bool(self.trains),
            self.is_random,
            device.is_measured,
        )

    @property
    def is_random(self) -> bool:
        """Whether numbers are drawn: dropout between the layers."""
        return bool(self.trains and self._dropout > 0)

    def copied(self, tensor: torch.Tensor) -> int:
        """Bytes of the copy that cuDNN, for which steps come first, needs of `tensor`."""
        moved = tensor.transpose(0, 1) if self.batch_first else tensor
        return 0 if moved.is_contiguous() else tensor.numel() * tensor.dtype.itemsize

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in a block of its own, with steps first."""
        if not self.batch_first:
            return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        moved = tensor.transpose(0, 1)
        return torch.empty(moved.shape, dtype=tensor.dtype).copy_(moved).transpose(0, 1)

    def compute(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The operator's results for these input, states and weights, in a dry run only their
        shapes; in float32 where they are of less, as the CPU has no fast kernel for it."""
        dtype = tensors[0].dtype
        if self.tracker.is_dry:
            width = self.layout.directions * (self.layout.projected or self.layout.hidden)
            output = torch.empty((*tensors[0].shape[:-1], width), dtype=dtype)
            return output, *map(torch.empty_like, tensors[1 : 1 + self.states])
        if dtype.itemsize < torch.float32.itemsize:
            computed = self.compute([tensor.float() for tensor in tensors])
            return tuple(result.to(dtype) for result in computed)
        states = tensors[1 : 1 + self.states]
        out: tuple[torch.Tensor, ...] = composite_kernel(self._operator)(
            tensors[0],
            *self._before,
            states if self.states > 1 else states[0],
            tensors[1 + self.states :],
            *self._after,
        )
        return out

    @torch.enable_grad()
    def differentiate(
        self, tensors: list[torch.Tensor], gradients: tuple[torch.Tensor | None, ...]
    ) -> list[torch.Tensor]:
        """The gradients of these input, states and weights for those of the results; in a dry run
        only their shapes."""
        if self.tracker.is_dry:
            return list(map(torch.empty_like, tensors))
        inputs = [t.detach().requires_grad_() for t in tensors]
        values = self.compute(inputs)
        known = [(v, g) for v, g in zip(values, gradients, strict=True) if g is not None]
        found = torch.autograd.grad(
            [v for v, _ in known], inputs, [g for _, g in known], allow_unused=True
        )
        return [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]


class Layers(torch.autograd.Function):
    """Saves the input, the states, the weights, the output and the reserve (_cudnn_rnn)."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The output and the last states."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        weights = tensors[1 + call.states :]
        itemsize = tensors[0].dtype.itemsize
        with call.tracker.suspended(), call.tracker.random_of_device():
            ctx.random = torch.default_generator.get_state() if call.is_random else None
            values = call.compute(list(tensors))
            results = [call.laid_out(values[0]), *map(torch.clone, values[1:])]
            is_flat = call.layout.is_kept_by(weights, call.each)
            buffer = torch.empty(0 if is_flat else call.layout.numel, dtype=weights[0].dtype)
            reserve = torch.empty(0, dtype=torch.uint8)
            copied = call.copied(tensors[0])
        with Blocks(call.storages) as blocks:
            blocks.take(copied)
            for tensor in (*results, buffer):
                call.storages.place(tensor)
            workspace = call.storages.malloc(call.space.workspace(itemsize))
            if call.trains:  # whether or not anything is to be differentiated
                call.storages.place(reserve, call.storages.malloc(call.space.reserve(itemsize)))
            call.storages.release(workspace)
        ctx.save_for_backward(*tensors, results[0], reserve, buffer)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """The gradients of input, states and weights."""
        call: Call = ctx.call
        if not call.trains:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        *tensors, output, _, _ = ctx.saved_tensors
        of_weights = any(ctx.needs_input_grad[2 + call.states :])
        others = 1 + call.states
        with call.tracker.suspended():
            with call.tracker.random_of_device(ctx.random):
                dense = call.differentiate(tensors, gradients)
            results = [call.laid_out(dense[0]), *map(torch.clone, dense[1:others])]
            in_place = _in_one_block(dense[others:], call) if of_weights else []
        _place(call, tensors, output, gradients, results, in_place)
        of_none: list[Any] = [None] * (len(tensors) - others)
        return None, *results, *(in_place or of_none)


def _place(
    call: Call,
    tensors: list[torch.Tensor],
    output: torch.Tensor,
    gradients: tuple[torch.Tensor | None, ...],
    results: list[torch.Tensor],
    of_weights: list[torch.Tensor],
) -> None:
    """_cudnn_rnn_backward: zeros for gradients that nobody gave, then the gradients of input and
    states, then those of the weights."""
    itemsize = tensors[0].dtype.itemsize
    with call.tracker.suspended():
        given = [0 if g is None else call.copied(g) for g in gradients[:1]]
        given += [
            0 if g is None or g.is_contiguous() else g.numel() * g.dtype.itemsize
            for g in gradients[1:]
        ]
        copied = call.copied(tensors[0])
    with Blocks(call.storages) as zeros:
        for gradient, like in zip(gradients, (output, *tensors[1:]), strict=False):
            if gradient is None:
                zeros.take(like.numel() * itemsize)
        with Blocks(call.storages) as copies:
            copies.take(copied)
            copies.take(given[0])
            call.storages.place(results[0])
            for size in given[1:]:
                copies.take(size)
            for result in results[1:]:
                call.storages.place(result)
            copies.take(call.space.workspace(itemsize))
        if of_weights:
            with Blocks(call.storages) as copies:
                copies.take(copied)
                own = of_weights[0].untyped_storage().nbytes() < call.layout.numel * itemsize
                copies.take(call.layout.numel * itemsize if own else 0)
                if not own:
                    call.storages.place(of_weights[0])
                copies.take(call.space.workspace(itemsize))
                for gradient in of_weights:
                    call.storages.place(gradient)


def _in_one_block(gradients: Any, call: Call) -> list[torch.Tensor]:
    """The weights' gradients: parts of one buffer, or of none where cuDNN's has room for biases
    that the layer does not have."""
    if call.each < 4:
        return [gradient.clone() for gradient in gradients]
    buffer = torch.empty(call.layout.numel, dtype=gradients[0].dtype)
    places = call.layout.views(buffer, call.each)
    return [place.copy_(gradient) for place, gradient in zip(places, gradients, strict=True)]
