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


def is_fused() -> bool:
    """Whether CUDA has the fused kernel, as from torch 2.9 on; before, its name was one of MPS."""
    fused = getattr(torch.ops.aten, "_fused_rms_norm", None)
    return fused is not None and fused.default._schema.arguments[1].name == "normalized_shape"


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
            normed, norms = torch.ops.aten._fused_rms_norm(tensor, shape, weight, eps)
            out: torch.Tensor = normed.contiguous()
        with Blocks(storages) as copies:
            copies.take(0 if tensor.is_contiguous() else tensor.nbytes)
            storages.place(out)
            storages.place(norms)
        ctx.save_for_backward(tensor, weight, norms)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The gradients of tensor and weight."""
        storages, tracker, shape, _ = ctx.call
        tensor, weight, norms = ctx.saved_tensors
        with tracker.suspended():
            results = _gradients(gradients[0], tensor, weight, norms, len(shape))
        with Blocks(storages) as copies:
            copies.take(0 if tensor.is_contiguous() else tensor.nbytes)
            for result, is_needed in zip(results, ctx.needs_input_grad[1:], strict=False):
                if is_needed:
                    storages.place(result)
            copies.take(0 if gradients[0].is_contiguous() else gradients[0].nbytes)
        return None, *results


def _gradients(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    norms: torch.Tensor,
    dims: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of the tensor and of the weight, in float32 or wider. dims: that are normalized over."""
    wide = norms.dtype
    scaled, whole = tensor.to(wide) * norms, gradient.to(wide)
    of_weight = None
    if weight is not None:
        products = (whole * scaled).reshape(-1, *weight.shape)
        of_weight = products.sum(0).to(weight.dtype)
        whole = whole * weight
    common = (whole * scaled).mean(tuple(range(-dims, 0)), keepdim=True)
    return ((whole - scaled * common) * norms).to(tensor.dtype), of_weight
