"""Which fused kernels attention over jagged nested tensors may take on the card: its Python code
asks (torch/nested/_internal/sdpa.py), apart from `scaled_dot_product_attention`, whose C++ does."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from gpumem_magic.virtual.patches import Patches

_HALVES = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256
_FLASH_SINCE = 8, 0


def install(patches: Patches, capability: tuple[int, int]) -> None:
    """Let it take what a card of this capability has; only shapes are told of these kernels, so
    that there are none where values are computed."""
    backends: Any = torch.backends.cuda
    nested: Any = importlib.import_module("torch.nested._internal.sdpa")

    def flash(params: Any, debug: bool = False) -> bool:
        query, heads = params.query, {t.size(-1) for t in (params.query, params.key, params.value)}
        known = query.dtype in _HALVES and capability >= _FLASH_SINCE
        fits = len(heads) == 1 and max(heads) <= _FLASH_HEAD and params.attn_mask is None
        return bool(known and fits and backends.flash_sdp_enabled())

    def efficient(params: Any, debug: bool = False) -> bool:
        dtype = params.query.dtype
        known = dtype in (torch.float32, torch.float16) or capability >= _FLASH_SINCE
        multiple = 16 // dtype.itemsize if capability >= _FLASH_SINCE or dtype.itemsize == 2 else 1
        aligned = not any(t.size(-1) % multiple for t in (params.query, params.value))
        return bool(known and aligned and backends.mem_efficient_sdp_enabled())

    for name, answer in (("flash", flash), ("efficient", efficient)):
        for owner in (backends, nested):
            patches.set(owner, f"can_use_{name}_attention", answer)
