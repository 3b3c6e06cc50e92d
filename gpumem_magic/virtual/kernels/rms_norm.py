"""RMS norm as CUDA's fused kernel computes it (_fused_rms_norm in native/cuda/
layer_norm_kernel.cu, torch 2.9 and later): nothing between the input and the result is kept."""

from __future__ import annotations

from typing import Any

import torch

from gpumem_magic.virtual.storages import Blocks, Storages
from gpumem_magic.virtual.torch_cuda.threads import Here
from gpumem_magic.virtual.tracker import Tracker
from gpumem_magic.virtual.traits import composite_kernel

_COMPOSITE = torch.ops.aten.rms_norm.default


class RMSNorm:
    """The operator's kernel."""

    def __init__(self, storages: Storages, here: Here) -> None:
        self._storages = storages
        self._here = here

    def __call__(
        self,
        tensor: torch.Tensor,
        normalized_shape: Any,
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> torch.Tensor:
        """rms_norm in native/layer_norm.cpp, which takes apart what differs in type."""
        if weight is not None and weight.dtype is not tensor.dtype:
            plain: torch.Tensor = composite_kernel(_COMPOSITE)(
                tensor, normalized_shape, weight, eps
            )
            return plain
        call = self._storages, self._here.tracker, list(normalized_shape), eps
        out: torch.Tensor = _Fused.apply(call, tensor, weight)  # type: ignore[no-untyped-call]
        return out


class _Fused(torch.autograd.Function):
    """Saves the input, the weight and one float32 for each norm."""

    @staticmethod
    def forward(
        ctx: Any,
        call: tuple[Storages, Tracker, list[int], float | None],
        tensor: torch.Tensor,
        weight: torch.Tensor | None,
    ) -> torch.Tensor:
        """The normalized tensor."""
        storages, tracker, shape, eps = ctx.call = call
        with tracker.suspended():
            values = composite_kernel(_COMPOSITE)(tensor, shape, weight, eps)
            out = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(values)
            norms = torch.empty(tensor.shape[: tensor.dim() - len(shape)])
        with Blocks(storages) as copies:
            copies.take(0 if tensor.is_contiguous() else tensor.nbytes)
            storages.place(out)
            storages.place(norms)
        ctx.save_for_backward(tensor, weight, norms)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The gradients of tensor and weight."""
        storages, tracker, shape, eps = ctx.call
        tensor, weight, _ = ctx.saved_tensors
        with tracker.suspended(), torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in (tensor, weight) if t is not None]
            values = composite_kernel(_COMPOSITE)(
                inputs[0], shape, inputs[1] if weight is not None else None, eps
            )
            found = torch.autograd.grad(values, inputs, gradients[0])
            results = [torch.empty(g.shape, dtype=g.dtype).copy_(g) for g in found]
        with Blocks(storages) as copies:
            copies.take(0 if tensor.is_contiguous() else tensor.nbytes)
            for result, is_needed in zip(results, ctx.needs_input_grad[1:], strict=False):
                if is_needed:
                    storages.place(result)
            copies.take(0 if gradients[0].is_contiguous() else gradients[0].nbytes)
        return None, results[0], results[1] if weight is not None else None
