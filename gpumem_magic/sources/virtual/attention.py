"""Fused attention: what flash and memory-efficient attention keep for backward and take while they
run.

The values are computed by torch's plain formula, out of sight of the tracker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gpumem_magic.sources.virtual.storages import Storages
from gpumem_magic.sources.virtual.tracker import Tracker

_FLASH_HEAD = 256
"""The largest head dimension of flash attention (native/transformers/cuda/sdp_utils.cpp)."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused kernel: rows of the log-sum-exp are padded to `row_multiple`."""

    name: str
    row_multiple: int


FLASH = Fused("flash", 1)
EFFICIENT = Fused("efficient", 32)
"""kAlignLSE of the memory-efficient kernels (native/transformers/cuda/mem_eff_attention)."""

_MASK_MULTIPLE = 8
"""mem_eff_alignment of native/transformers/attention.cpp, in elements."""


def choose_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    grouped: bool,
    capability: tuple[int, int],
) -> Fused | None:
    """The kernel that CUDA's scaled_dot_product_attention takes; None: the plain formula.

    Follows the checks of native/transformers/cuda/sdp_utils.cpp, and honours the switches of
    torch.nn.attention.sdpa_kernel.
    """
    tensors = (query, key, value)
    if any(t.dim() != 4 or t.stride(-1) != 1 for t in tensors) or 0 in query.shape:
        return None
    if not (query.shape[0] == key.shape[0] == value.shape[0]):
        return None
    half = query.dtype in (torch.float16, torch.bfloat16)
    same_head = query.shape[-1] == key.shape[-1] == value.shape[-1]
    flash = capability >= (8, 0) and half and mask is None and same_head
    if flash and query.shape[-1] <= _FLASH_HEAD and torch.backends.cuda.flash_sdp_enabled():
        return FLASH
    known = query.dtype in (torch.float16, torch.float32) or (
        query.dtype is torch.bfloat16 and capability >= (8, 0)
    )
    alignment = (8 if half else 4) if capability >= (8, 0) or half else 1
    aligned = query.shape[-1] % alignment == 0 and value.shape[-1] % alignment == 0
    heads = query.shape[1] == key.shape[1] == value.shape[1] and not grouped
    if known and aligned and heads and torch.backends.cuda.mem_efficient_sdp_enabled():
        return EFFICIENT
    return None


def additive_mask(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask to add to the scores, also of one that tells where to look
    (convert_boolean_attn_mask in native/transformers/attention.cpp)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, mask.new_full((), -torch.inf, dtype=query.dtype))


def _for_kernel(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mask as memory-efficient attention reads it: rows in multiples of 8 elements, for every
    batch and head (preprocess_mask in native/transformers/attention.cpp)."""
    if mask.stride(-1) != 1 or any(stride % _MASK_MULTIPLE for stride in mask.stride()[:-1]):
        columns = mask.shape[-1]
        padded = torch.nn.functional.pad(mask, (0, _MASK_MULTIPLE - columns % _MASK_MULTIPLE))
        mask = padded[..., :columns]
    return mask.expand(*query.shape[:3], key.shape[2])


def attend(
    storages: Storages,
    tracker: Tracker,
    fused: Fused,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    settings: tuple[float, bool],
    options: dict[str, Any],
) -> torch.Tensor:
    """Attention by a fused kernel. settings: dropout probability, causal."""
    device = _Device(storages, tracker, fused)
    tracker.operator = "scaled_dot_product_attention"
    if mask is not None:
        mask = _for_kernel(mask, *tensors[:2])
    out: torch.Tensor = _Attention.apply(device, settings, options, mask, *tensors)  # type: ignore[no-untyped-call]
    return out


class _Device:
    """Where the kernel runs, handed to autograd as one value."""

    def __init__(self, storages: Storages, tracker: Tracker, fused: Fused) -> None:
        self.storages = storages
        self.tracker = tracker
        self.fused = fused


def _plain(
    tensors: Any, mask: torch.Tensor | None, settings: tuple[float, bool], options: dict[str, Any]
) -> torch.Tensor:
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        *tensors, mask, *settings, None, **options
    )[0]
    return out


class _Attention(torch.autograd.Function):
    """Saves query, key, value, the output and one float per row, whatever the sequence length."""

    @staticmethod
    def forward(
        ctx: Any,
        device: _Device,
        settings: tuple[float, bool],
        options: dict[str, Any],
        mask: torch.Tensor | None,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.device, ctx.settings, ctx.options = device, settings, options
        query = tensors[0]
        batch, heads, rows, _ = query.shape
        with device.tracker.suspended():
            with device.tracker.random_of_device():
                ctx.random = torch.default_generator.get_state() if settings[0] else None
                values = _plain(tensors, mask, settings, options)
            out = values.transpose(1, 2).contiguous().transpose(1, 2)
            padded = -(-rows // device.fused.row_multiple) * device.fused.row_multiple
            sums = torch.empty((batch, heads, padded), dtype=torch.float32)
        device.storages.place(out)
        if any(ctx.needs_input_grad):
            device.storages.place(sums)
            ctx.save_for_backward(mask, *tensors, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        device: _Device = ctx.device
        mask, *tensors, out, sums = ctx.saved_tensors
        with device.tracker.suspended(), torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in tensors]
            bias = mask
            if mask is not None and ctx.needs_input_grad[3]:
                bias = mask.detach().requires_grad_()
                inputs.append(bias)
            with device.tracker.random_of_device(ctx.random):
                values = _plain(inputs[:3], bias, ctx.settings, ctx.options)
            gradients = [g.clone() for g in torch.autograd.grad(values, inputs, gradient)]
        for computed in gradients:
            device.storages.place(computed)
        _backward_buffers(device, out, sums, tensors[1])
        of_mask = gradients[3] if len(gradients) == 4 else None
        return None, None, None, of_mask, *gradients[:3]


def _backward_buffers(
    device: _Device, out: torch.Tensor, sums: torch.Tensor, key: torch.Tensor
) -> None:
    """_efficient_attention_backward and the flash kernel's in native/transformers/cuda: the row
    sums of gradient x output, then accumulators in float32."""
    allocate, release = device.storages.malloc, device.storages.release
    batches = out.shape[0] * out.shape[1]
    if device.fused is FLASH:
        row_sums, accumulator = allocate(sums.numel() * 4), allocate(out.numel() * 4)
        release(accumulator)
        release(row_sums)
        return
    rows = batches * out.shape[2] * 4
    if out.dtype is torch.float32:  # the kernel does not sum the rows itself: !kKernelComputesDelta
        product = allocate(out.numel() * 4)
        transposed, row_sums = allocate(rows), allocate(rows)
        release(transposed)
        release(product)
    else:
        row_sums = allocate(rows)
    workspace = allocate(batches * (2 * key.shape[2] * key.shape[3] + 8) * 4)
    release(row_sums)
    release(workspace)
