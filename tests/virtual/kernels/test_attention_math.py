"""Attention by the plain formula: values as torch's, blocks as CUDA's code asks for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": -0.5},
    "mask": {"attn_mask": True},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_host(gpu, options, dtype):
    heads = 2 if options.get("enable_gqa") else 4
    tensors = [torch.randn(2, n, 5, 8, dtype=dtype) for n in (4, heads, heads)]
    results = []
    for device in ("cpu", "cuda"):
        given = [t.clone().to(device).requires_grad_() for t in tensors]
        chosen = dict(options)
        if "attn_mask" in chosen:
            chosen["attn_mask"] = torch.linspace(-1, 1, 25).view(5, 5).to(device, dtype)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            out = functional.scaled_dot_product_attention(*given, **chosen)
        out.sum().backward()
        results.append([out, *(t.grad for t in given)])
    for host, device in zip(*results, strict=True):
        assert torch.allclose(host, device.cpu(), atol=1e-5 if dtype is torch.float32 else 2e-2)


def test_the_mask_is_added_in_place(blocks):
    """Grouped heads have no fused kernel on this card."""
    query = torch.randn(2, 4, 64, 16, device="cuda")
    key = torch.randn(2, 2, 64, 16, device="cuda")
    blocks()
    with torch.no_grad():
        functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
    scores = 2 * 4 * 64 * 64 * 4
    assert blocks().count(scores) == 2  # before and after the softmax


def test_a_mask_whose_rows_are_not_dense_has_no_fused_kernel(blocks):
    """Such as one column of a relative position's bias."""
    query = torch.randn(2, 4, 1, 16, device="cuda")
    mask = torch.randn(1, 1, 8, 4, device="cuda").permute(0, 3, 1, 2)
    blocks()
    with torch.no_grad():
        functional.scaled_dot_product_attention(query, query, query, attn_mask=mask[..., -1:, -1:])
    taken = blocks()
    assert taken[:2] == [512, 512]  # the query and the keys, each times the root of the scale


def test_what_is_converted_stays_beside_what_is_made_of_it(gpu):
    """Halves are computed with in float32; grouped keys are then repeated for every head."""
    query = torch.randn(1, 8, 256, 64, device="cuda", dtype=torch.float16)
    key = torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.float16)
    _ = query.float() @ query.float().mT  # takes cuBLAS's workspace
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    wide, few, scores = 2 * query.numel() * 4, 2 * key.numel() * 4, 8 * 256 * 256 * 4
    repeated, masks = 2 * query.numel() * 4, scores // 4 + 8 * 256 + 512
    peak = torch.cuda.max_memory_allocated() - before
    assert peak == wide + few + repeated + 2 * scores + masks


def test_gradients_of_a_tensor_that_is_key_and_value_are_added_in_place(gpu):
    query = torch.randn(2, 8, 700, 64, device="cuda", requires_grad=True)
    key = torch.randn(2, 8, 300, 64, device="cuda", requires_grad=True)
    functional.scaled_dot_product_attention(query, key, key).mean().backward()
    # a sum in a block of its own would take one that is 480 KiB too large, and keep it whole
    assert torch.cuda.memory_allocated() - 2 * (query.nbytes + key.nbytes) < 100_000


@pytest.mark.parametrize(("dropout", "taken"), [(0.0, [16, 8]), (0.1, [16, 8, 16])])
def test_flash_attention_keeps_the_two_numbers_of_its_random_state(dropout, taken):
    with VirtualGPU(lookup("A100-40GB")) as gpu:
        query = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        asked: list[int] = []
        real = gpu.storages.malloc
        gpu.storages.malloc = lambda size: (asked.append(size), real(size))[1]
        functional.scaled_dot_product_attention(query, query, query, dropout_p=dropout)
        assert [size for size in asked if size][-len(taken) :] == taken
