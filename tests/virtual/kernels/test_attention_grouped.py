"""Heads of the key and the value that several heads of the query share: in which kernel, by release
of PyTorch. Bytes beside the operands, forward and at the peak with backward, as the CUDA builds of
2.11.0, 2.14.1 and 2.15.0 count them on a device whose kernels do nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

HALF, SINGLE = torch.float16, torch.float32


def _operands(heads: int, dtype: torch.dtype = HALF, grad: bool = False) -> list[torch.Tensor]:
    return [
        torch.zeros(8, each, 512, 64, device="cuda", dtype=dtype, requires_grad=grad)
        for each in (16, heads, heads)
    ]


@pytest.mark.parametrize(
    ("release", "card", "heads", "asked", "masked", "taken"),
    [
        ((2, 11), "T4", 4, True, False, 386073088),
        ((2, 11), "A100-40GB", 4, True, False, 8651776),
        ((2, 11), "A100-40GB", 4, True, True, 386073088),
        ((2, 11), "A100-40GB", 1, False, False, 346227200),
        ((2, 11), "A100-40GB", 1, True, False, 8651776),
        ((2, 11), "H100", 4, True, True, 8389632),
        ((2, 14), "T4", 4, True, False, 8389632),
        ((2, 14), "A100-40GB", 4, True, True, 8389632),
        ((2, 14), "A100-40GB", 1, False, False, 8651776),
        ((2, 14), "T4", 1, False, True, 8389632),
        ((2, 14), "H100", 1, False, False, 8389632),
    ],
)
def test_grouped_heads_go_to_a_fused_kernel(
    monkeypatch, release, card, heads, asked, masked, taken
):
    monkeypatch.setattr("gpumem_magic.virtual.devices.RELEASE", release)
    with VirtualGPU(lookup(card)):
        mask = torch.zeros(8, 1, 512, 512, device="cuda", dtype=HALF) if masked else None
        operands = _operands(heads)
        before = torch.cuda.memory_allocated()
        scaled_dot_product_attention(*operands, attn_mask=mask, enable_gqa=asked)
        assert torch.cuda.max_memory_allocated() - before == taken


@pytest.mark.parametrize(
    ("dtype", "heads", "peak"),
    [(SINGLE, 4, 109840384), (SINGLE, 1, 103548928), (HALF, 4, 63457280), (HALF, 1, 60311552)],
)
def test_gradients_of_shared_heads_are_summed_from_those_of_each(monkeypatch, dtype, heads, peak):
    monkeypatch.setattr("gpumem_magic.virtual.devices.RELEASE", (2, 15))
    with VirtualGPU(lookup("T4")):
        operands = _operands(heads, dtype, grad=True)
        before = torch.cuda.memory_allocated()
        scaled_dot_product_attention(*operands, is_causal=True, enable_gqa=True).sum().backward()
        assert torch.cuda.max_memory_allocated() - before == peak
        assert operands[1].grad.shape[1] == heads


@pytest.mark.parametrize("asked", [True, False])
def test_heads_that_do_not_fit_are_an_error(asked):
    words = "must divide the number of heads" if asked else "must match the size of tensor b"
    with VirtualGPU(lookup("A100-40GB")), pytest.raises(RuntimeError, match=words):
        scaled_dot_product_attention(*_operands(3), enable_gqa=asked)
