"""Attention by the plain formula, in the steps and with the memory of torch's C++ code, which a
dispatch mode would have it change: it would not add the mask in place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key and value."""


@dataclass(frozen=True, slots=True)
class How:
    """What scaled_dot_product_attention is asked besides its tensors, in torch's words."""

    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def attend_plainly(tensors: Tensors, mask: torch.Tensor | None, how: How) -> torch.Tensor:
    """_scaled_dot_product_attention_math in native/transformers/attention.cpp; mask: additive."""
    query, key, value = tensors
    dtype = query.dtype
    if dtype.itemsize == 2 and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    wide = query  # stays beside the scaled one
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
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query, (key * root).transpose(-2, -1))
    if mask is not None:
        scores.add_(mask)
    scores = torch.ops.aten._safe_softmax(scores, -1)
    if how.dropout_p > 0:
        scores = torch.dropout(scores, how.dropout_p, True)
    weights = scores.to(dtype)  # returned beside the output, of which nobody takes it
    out = torch.matmul(scores, value).to(dtype)
    del weights, wide
    return out
