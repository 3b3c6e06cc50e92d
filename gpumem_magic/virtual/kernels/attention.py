"""Attention: by the plain formula, and by fused kernels (flash, memory-efficient, cuDNN's) with
what they keep for backward and take while they run.

The values of fused kernels are computed by torch's plain formula, out of sight of the tracker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from gpumem_magic.virtual import devices
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.storages import Blocks, Storages
from gpumem_magic.virtual.tracker import Tracker
from gpumem_magic.virtual.workspaces.attention_memory import (
    Shape,
    cudnn_workspace,
    efficient_accumulator,
    efficient_buffers,
    flash_buffers,
    flash_splits,
    rounded,
)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key and value."""

_FLASH_HEAD = 256
"""The largest head dimension of flash attention (native/transformers/cuda/sdp_utils.cpp)."""


@dataclass(frozen=True, slots=True)
class How:
    """What scaled_dot_product_attention is asked besides its tensors, in torch's words."""

    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused kernel: rows of the log-sum-exp are padded to `row_multiple`."""

    name: str
    row_multiple: int


FLASH = Fused("flash", 1)
CUDNN = Fused("cudnn", 1)
EFFICIENT = Fused("efficient", 32)
"""kAlignLSE of the memory-efficient kernels (native/transformers/cuda/mem_eff_attention)."""

_SOFTMAX: Callable[..., torch.Tensor] = getattr(torch.ops.aten, "_safe_softmax", torch.softmax)
"""What the plain formula takes; safe for rows that are masked whole from torch 2.5 on."""

_GROUPS_IN_ALL = _SEEDS_IN_ALL = 2, 14
"""From which release on all fused kernels share heads of the key and the value, a single one also
where it isn't asked for; and keep what random numbers began with."""

_STATE_OF_DROPOUT = 16
"""Bytes that flash attention takes for a moment where it drops out, as seen on a CUDA build."""

_MASK_MULTIPLE = 8
"""mem_eff_alignment of native/transformers/attention.cpp, in elements."""


def choose_attention(
    tensors: Tensors, mask: torch.Tensor | None, how: How, capability: tuple[int, int]
) -> Fused | None:
    """The kernel that CUDA's scaled_dot_product_attention takes; None: the plain formula.

    Follows the checks of native/transformers/cuda/sdp_utils.cpp, and honours the switches of
    torch.nn.attention.sdpa_kernel.
    """
    query, key, value = tensors
    if any(t.dim() != 4 or t.stride(-1) != 1 for t in tensors) or 0 in query.shape:
        return None
    if mask is not None and mask.stride(-1) != 1:  # even of one column
        return None
    if not (query.shape[0] == key.shape[0] == value.shape[0]):
        return None
    alike = _heads_are_alike(tensors)
    if not alike and not _heads_are_shared(tensors, how):
        return None
    half = query.dtype in (torch.float16, torch.bfloat16)
    same_head = query.shape[-1] == key.shape[-1] == value.shape[-1]
    square = not how.is_causal or query.shape[2] == key.shape[2]
    if mask is None or not mask.requires_grad:
        fits = half and same_head and query.shape[-1] <= _FLASH_HEAD and query.shape[-1] % 8 == 0
        if fits and capability[0] in (9, 10) and torch.backends.cuda.cudnn_sdp_enabled():
            return CUDNN
    flash = capability >= (8, 0) and half and mask is None and same_head and square
    if flash and query.shape[-1] <= _FLASH_HEAD and torch.backends.cuda.flash_sdp_enabled():
        return FLASH
    known = query.dtype in (torch.float16, torch.float32) or (
        query.dtype is torch.bfloat16 and capability >= (8, 0)
    )
    alignment = (8 if half else 4) if capability >= (8, 0) or half else 1
    aligned = query.shape[-1] % alignment == 0 and value.shape[-1] % alignment == 0
    known &= alike or devices.RELEASE >= _GROUPS_IN_ALL
    if known and aligned and torch.backends.cuda.mem_efficient_sdp_enabled():
        return EFFICIENT
    return None


def _heads_are_alike(tensors: Tensors) -> bool:
    return len({tensor.shape[1] for tensor in tensors}) == 1


def _heads_are_shared(tensors: Tensors, how: How) -> bool:
    """Whether several heads of the query have a head of the key and the value together."""
    query, key, value = (tensor.shape[1] for tensor in tensors)
    if key != value or key == 0:
        return False
    if how.enable_gqa:
        return query % key == 0
    return key == 1 and devices.RELEASE >= _GROUPS_IN_ALL


def additive_mask(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask to add to the scores, also of one that tells where to look
    (convert_boolean_attn_mask in native/transformers/attention.cpp)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    hidden = mask.new_full((), -torch.inf, dtype=query.dtype)
    return torch.where(mask, torch.zeros_like(hidden), hidden)


def mask_for_kernel(
    mask: torch.Tensor | None, fused: Fused, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """The mask as memory-efficient attention reads it: rows in multiples of 8 elements, for every
    batch and head (preprocess_mask in native/transformers/attention.cpp)."""
    if mask is None or fused is not EFFICIENT:
        return mask
    if mask.stride(-1) != 1 or any(stride % _MASK_MULTIPLE for stride in mask.stride()[:-1]):
        columns = mask.shape[-1]
        padded = torch.nn.functional.pad(mask, (0, _MASK_MULTIPLE - columns % _MASK_MULTIPLE))
        mask = padded[..., :columns]
    return mask.expand(*query.shape[:3], key.shape[2])


def attend_in_graph(
    choice: Fused, tensors: Tensors, mask: torch.Tensor | None, how: How
) -> torch.Tensor:
    """The operator that stands for the kernel in a graph that is traced for torch.compile."""
    query, key, value = tensors
    if not _heads_are_alike(tensors):
        key, value = _for_each_head(query, key, value)
    aten, scale = torch.ops.aten, how.scale
    if choice is FLASH:
        flash = aten._scaled_dot_product_flash_attention
        out = flash(query, key, value, how.dropout_p, how.is_causal, False, scale=scale)
        return cast(torch.Tensor, out[0])
    saves = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    efficient = aten._scaled_dot_product_efficient_attention
    out = efficient(query, key, value, mask, saves, how.dropout_p, how.is_causal, scale=scale)
    return cast(torch.Tensor, out[0])


def pad_heads(tensors: Tensors, how: How) -> tuple[Tensors, How]:
    """Flash attention's operands, whose heads are a multiple of 8 (pad_last_dim in
    native/transformers/attention.cpp)."""
    head = tensors[0].shape[-1]
    scale = 1 / math.sqrt(head) if how.scale is None else how.scale
    query, key, value = (torch.nn.functional.pad(each, (0, -head % 8)) for each in tensors)
    return (query, key, value), replace(how, scale=scale)


def _for_each_head(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Key and value of grouped queries, repeated."""
    heads = query.shape[-3]
    if any(heads % part.shape[-3] for part in (key, value)):
        raise RuntimeError(
            "Number of heads in key and value must divide the number of heads in query"
        )
    return tuple(part.repeat_interleave(heads // part.shape[-3], -3) for part in (key, value))


@dataclass(frozen=True, slots=True)
class FusedDevice:
    """Where a fused kernel runs, handed to autograd as one value."""

    storages: Storages
    tracker: Tracker
    fused: Fused
    card: GPUModel

    def attend(self, tensors: Tensors, how: How, mask: torch.Tensor | None) -> torch.Tensor:
        """Attention by the fused kernel."""
        self.tracker.operator = "scaled_dot_product_attention"
        out: torch.Tensor = _Attention.apply(self, how, mask, *tensors)  # type: ignore[no-untyped-call]
        return out

    def result(self, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """`values` in a new tensor with the layout in which the kernel writes it: flash attention
        takes that of `like`, memory-efficient attention has the heads beside their elements."""
        model, shape = like.transpose(1, 2), values.transpose(1, 2).shape
        follows = self.fused is not EFFICIENT and model.shape == shape
        layout = model if follows else torch.empty(shape, device="meta")
        strides = torch.empty_like(layout, device="meta").transpose(1, 2).stride()
        # no view, though it has the strides of one: autograd adds to what has no base
        return torch.empty_strided(values.shape, strides, dtype=values.dtype).copy_(values)


def _values(device: FusedDevice, tensors: Any, mask: torch.Tensor | None, how: How) -> torch.Tensor:
    """What attention computes; in a dry run only its shape."""
    if device.tracker.is_dry:
        query, _, value = tensors
        return torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype)
    return _plain(tensors, mask, how)


def _plain(tensors: Any, mask: torch.Tensor | None, how: How) -> torch.Tensor:
    options: dict[str, Any] = {"scale": how.scale}
    if how.enable_gqa:  # from torch 2.5
        options["enable_gqa"] = True
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        *tensors, mask, how.dropout_p, how.is_causal, None, **options
    )[0]
    return out


class _Attention(torch.autograd.Function):
    """Saves query, key, value, the output and one float per row, whatever the sequence length."""

    @staticmethod
    def forward(
        ctx: Any,
        device: FusedDevice,
        how: How,
        mask: torch.Tensor | None,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.device, ctx.how = device, how
        query = tensors[0]
        batch, heads, rows, _ = query.shape
        with device.tracker.suspended():
            with device.tracker.random_of_device():
                ctx.random = torch.default_generator.get_state() if how.dropout_p else None
                values = _values(device, tensors, mask, how)
            out = device.result(values, query)
            sums = torch.empty((batch, heads, rounded(rows, device.fused.row_multiple)))
            numbers = 2 if device.fused is FLASH else 1  # rng_state in flash_attn/flash_api.cpp
            seeds = [torch.empty(n, dtype=torch.int64) for n in (numbers, 1)]
        keeps = any(ctx.needs_input_grad)
        if device.fused is EFFICIENT and (how.dropout_p or devices.RELEASE < _SEEDS_IN_ALL):
            seeds = []  # on the host, where they are needed
        for made in (out, sums, *seeds) if device.fused is FLASH else (*seeds, out, sums):
            if keeps or made is not sums or device.fused is FLASH:
                device.storages.place(made)
        if keeps:
            query, key, value = tensors  # saved in the order in which autograd lets them go
            ctx.save_for_backward(mask, key, query, value, sums, out, *seeds)
        if device.fused is EFFICIENT:
            device.storages.borrow(efficient_accumulator(Shape.of(query, tensors[1])))
        elif device.fused is FLASH and how.dropout_p:
            device.storages.borrow(_STATE_OF_DROPOUT)
        elif device.fused is FLASH:
            shape = Shape.of(query, tensors[1])
            device.storages.borrow(*flash_splits(shape, device.card.multiprocessors))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        device: FusedDevice = ctx.device
        mask, key, query, value, _, out = ctx.saved_tensors[:6]
        tensors = [query, key, value]
        with device.tracker.suspended(), torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in tensors]
            bias = mask
            if mask is not None and ctx.needs_input_grad[2]:
                bias = mask.detach().requires_grad_()
                inputs.append(bias)
            if device.tracker.is_dry:
                computed = tuple(map(torch.empty_like, inputs))
            else:
                with device.tracker.random_of_device(ctx.random):
                    values = _plain(inputs[:3], bias, ctx.how)
                computed = torch.autograd.grad(values, inputs, gradient)
            gradients = list(map(device.result, computed[:3], tensors))
            gradients += map(_of_mask, computed[3:])
        _place_gradients(device, gradient, out, gradients, tensors)
        of_mask = gradients[3] if len(gradients) == 4 else None
        return None, None, of_mask, *gradients[:3]


def _of_mask(gradient: torch.Tensor) -> torch.Tensor:
    """The mask's gradient, whose rows begin at multiples of 16 elements."""
    columns = gradient.shape[-1]
    rows = torch.empty((*gradient.shape[:-1], rounded(columns, 16)), dtype=gradient.dtype)
    return rows[..., :columns].copy_(gradient)


def _place_gradients(
    device: FusedDevice,
    gradient: torch.Tensor,
    out: torch.Tensor,
    gradients: list[torch.Tensor],
    tensors: list[torch.Tensor],
) -> None:
    """_flash_attention_backward and _efficient_attention_backward in
    native/transformers/cuda/attention_backward.cu: contiguous copies of what is not, the results,
    then the kernel's own memory."""
    shape = Shape.of(*tensors[:2])
    read = {FLASH: (gradient, out), EFFICIENT: (gradient,), CUDNN: ()}[device.fused]
    # the kernels read tensors whose heads lie beside their elements; cuDNN's, what lies like `out`
    sizes = [t.nbytes for t in read if not t.transpose(1, 2).is_contiguous()]
    if device.fused is CUDNN and gradient.stride() != out.stride():
        sizes.append(gradient.nbytes)
    is_grouped = tensors[1].shape[1] != tensors[0].shape[1]
    expanded = shape.batches * shape.keys * shape.head * shape.itemsize * is_grouped
    with Blocks(device.storages) as copies:
        copies.take(*sizes)
        for computed in gradients:
            device.storages.place(computed)
        if device.fused is FLASH:
            device.storages.borrow(*flash_buffers(shape), expanded, expanded)
        elif device.fused is CUDNN:
            device.storages.borrow(cudnn_workspace(shape) + 2 * expanded)
        else:
            copies.take(expanded, expanded)
            efficient_buffers(device.storages, shape, out, device.card.capability)


def _widens_halves() -> bool:
    """Whether the plain formula computes half precision in float32, as torch 2.4 never did."""
    allowed = getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", lambda: True)
    return not allowed()


def attend_plainly(tensors: Tensors, mask: torch.Tensor | None, how: How) -> torch.Tensor:
    """_scaled_dot_product_attention_math in native/transformers/attention.cpp, in its steps; mask:
    additive. A dispatch mode would have torch's own code not add the mask in place."""
    query, key, value = tensors
    dtype = query.dtype
    if dtype.itemsize == 2 and _widens_halves():
        query, key, value = query.float(), key.float(), value.float()
    wide = query, key, value  # stay beside what is made of them
    scale = 1 / math.sqrt(query.shape[-1]) if how.scale is None else how.scale
    root = math.sqrt(abs(scale))
    query = query * math.copysign(root, scale)
    if how.is_causal:
        if mask is not None:
            raise RuntimeError(
                "_scaled_dot_product_attention: Explicit attn_mask should not be set when "
                "is_causal=True"
            )
        shape = query.shape[-2], key.shape[-2]
        mask = query.new_ones(shape, dtype=torch.bool).tril()
        hidden = mask.new_full((), -torch.inf, dtype=query.dtype)
        mask = torch.where(mask, torch.zeros_like(hidden), hidden)
        del hidden
    if how.enable_gqa:
        key, value = _for_each_head(query, key, value)
    scores = torch.matmul(query, (key * root).transpose(-2, -1))
    if mask is not None:
        scores.add_(mask)
    scores = _SOFTMAX(scores, -1)
    if how.dropout_p > 0:
        scores = torch.dropout(scores, how.dropout_p, True)
    weights = scores.to(dtype)  # returned beside the output, of which nobody takes it
    out = torch.matmul(scores, value).to(dtype)
    del weights, wide
    return out
