"""The fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer in inference: one operator
each, which on CUDA is made of other operators than on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from gpumem_magic.virtual.kernels.attention import EFFICIENT, FLASH, How, choose_attention
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages

_aten = torch.ops.aten
_FUSED_HEAD_MULTIPLE = 8
"""Sizes of heads that the fused kernels are tried with (native/transformers/cuda/attention.cu)."""


class _Projections(NamedTuple):
    """The weights and biases of attention: into queries, keys and values, and out of the heads."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor


class _Masked(NamedTuple):
    """The end of native_multi_head_attention's arguments."""

    mask: torch.Tensor | None = None
    need_weights: bool = True
    average_attn_weights: bool = True
    mask_type: int | None = None


class EncoderLayer:
    """The operators' kernels, for a card of this compute capability."""

    def __init__(self, storages: Storages, capability: tuple[int, int]) -> None:
        self._storages = storages
        self._capability = capability

    def install(self, patches: Patches) -> None:
        """Let modules take the path: they do not where a tensor's type or a mode sees functions, of
        which the virtual GPU's own does not count. Sequences of unlike lengths stay padded: a
        nested tensor's size depends on the values of the mask."""
        patches.set(torch.overrides, "has_torch_function", _is_overridden)
        is_aligned = torch._nested_tensor_from_mask_left_aligned
        patches.set(
            torch,
            "_nested_tensor_from_mask_left_aligned",
            lambda tensor, mask: tensor not in self._storages and is_aligned(tensor, mask),
        )

    def operators(self) -> dict[str, Callable[..., Any]]:
        """What to register, by the operator's name."""
        return {
            "_native_multi_head_attention": self._attention,
            "_transformer_encoder_layer_fwd": self._layer,
        }

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        embed_dim: int,
        num_head: int,
        *arguments: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """native_multi_head_attention_cuda in native/transformers/cuda/attention.cu; arguments: the
        projections, then the mask and what is wanted."""
        projections = _Projections(*arguments[:4])
        mask, need_weights, average_attn_weights, mask_type = _Masked(*arguments[4:])
        is_self = query is key and key is value
        if mask is None and is_self and not need_weights and self._is_fused(query, num_head):
            return _fused(query, num_head, projections), None
        qkv = _project(query, key, value, projections.qkv)
        q, k, v = _aten._transform_bias_rescale_qkv(qkv, projections.qkv_bias, num_head)
        del qkv
        heads = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        weights = torch.bmm(heads[0], heads[1].transpose(1, 2))
        scores = weights.view(*q.shape[:3], -1)
        if mask is None:
            _aten._softmax.out(scores, -1, False, out=scores)
        else:
            mask = mask if mask.dtype is torch.bool else mask.to(torch.bool)
            scores = _aten._masked_softmax(scores, mask, -1, mask_type)
        del weights
        mixed = _aten.bmm.out(scores.flatten(0, 1), heads[2], out=heads[0]).view(q.shape)
        if not need_weights:
            del scores
        out = _linear(mixed.permute(0, 2, 1, 3).contiguous(), projections.out, projections.out_bias)
        if not need_weights:
            return out, None
        if average_attn_weights:
            scores = scores.sum(1)
            scores /= num_head
        return out, scores

    def _is_fused(self, query: torch.Tensor, heads: int) -> bool:
        if (query.shape[-1] // heads) % _FUSED_HEAD_MULTIPLE:
            return False
        split = query.unflatten(-1, (heads, -1)).transpose(1, 2)
        choice = choose_attention((split, split, split), None, How(), self._capability)
        return choice in (FLASH, EFFICIENT)

    def _layer(
        self,
        src: torch.Tensor,
        embed_dim: int,
        num_heads: int,
        *arguments: Any,
    ) -> torch.Tensor:
        """transformer_encoder_layer_forward in native/transformers/transformer.cpp; arguments:
        the projections, use_gelu, norm_first, eps; weight and bias of both norms and both linear
        layers, mask and its type."""
        projections, parameters = arguments[:4], arguments[7:]
        use_gelu, norm_first, eps = arguments[4:7]
        weight_1, bias_1, weight_2, bias_2, inner, inner_bias, outer, outer_bias = parameters[:8]
        mask, mask_type = (*parameters[8:], None, None)[:2]

        def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.layer_norm(x, (embed_dim,), weight, bias, eps)

        x = norm(src, weight_1, bias_1) if norm_first else src
        masked = _Masked(mask, need_weights=False, mask_type=mask_type)
        x = self._attention(x, x, x, embed_dim, num_heads, *projections, *masked)[0].add_(src)
        if not norm_first:
            x = norm(x, weight_1, bias_1)
        before = x
        if norm_first:
            x = norm(x, weight_2, bias_2)
        flat = x.flatten(0, 1)
        wide = _aten._addmm_activation(inner_bias, flat, inner.t(), use_gelu=use_gelu)
        x = torch.addmm(outer_bias, wide, outer.t()).view(before.shape)
        del flat, wide
        x.add_(before)
        return x if norm_first else norm(x, weight_2, bias_2)


def _fused(query: torch.Tensor, heads: int, projections: _Projections) -> torch.Tensor:
    linear = torch.nn.functional.linear
    projected = linear(query, projections.qkv, projections.qkv_bias)
    chunks = [c.unflatten(-1, (heads, -1)).transpose(1, 2) for c in projected.chunk(3, -1)]
    mixed = torch.nn.functional.scaled_dot_product_attention(*chunks)
    merged = mixed.transpose(1, 2).reshape(query.shape)
    return linear(merged, projections.out, projections.out_bias)


def _is_overridden(arguments: Iterable[Any]) -> bool:
    """torch.overrides.has_torch_function, but for one mode."""
    disabled = torch._C._disabled_torch_function_impl
    kinds = {type(argument) for argument in arguments} - {torch.Tensor}
    return len(torch.overrides._get_current_function_mode_stack()) > 1 or any(
        getattr(kind, "__torch_function__", disabled) is not disabled for kind in kinds
    )


def _project(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """qkv_projection in native/transformers/attention.cpp."""
    if key is not value:
        parts = zip((query, key, value), weight.chunk(3, 0), strict=True)
    elif query is not key:
        width = query.shape[-1]
        parts = zip((query, key), weight.split([width, 2 * width], 0), strict=True)
    else:
        return torch.matmul(query, weight.t())
    return torch.cat([torch.matmul(tensor, part.t()) for tensor, part in parts], 2)


def _linear(heads: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    batch, rows = heads.shape[:2]
    merged = heads.view(batch * rows, -1)
    return torch.nn.functional.linear(merged, weight, bias).view(batch, rows, -1)
