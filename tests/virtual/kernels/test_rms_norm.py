"""RMS norm: fused as on CUDA, values and gradients as on the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_host(gpu, affine, dtype):
    x = torch.randn(4, 6, 8, dtype=dtype)
    results = []
    for device in ("cpu", "cuda"):
        norm = nn.RMSNorm((6, 8), elementwise_affine=affine, dtype=dtype, device=device)
        given = x.clone().to(device).requires_grad_()
        out = norm(given)
        out.square().sum().backward()
        results.append([out, given.grad, *(p.grad for p in norm.parameters())])
    for host, device in zip(*results, strict=True):
        assert torch.allclose(host, device.cpu(), rtol=2e-2, atol=1e-5)


def test_nothing_but_the_norms_is_kept(blocks):
    norm, x = nn.RMSNorm(256).cuda(), torch.randn(8, 50, 256, device="cuda")
    blocks()
    out = norm(x)
    assert blocks() == [out.nbytes, 8 * 50 * 4]
    out.backward(x)
    taken = [size for size in blocks() if size > 0]
    assert taken == [256 * 4]  # the input needs no gradient
    with torch.inference_mode():
        norm(x)
    assert sum(blocks()) == 0


def test_the_norms_are_float32_whatever_the_default_is(blocks):
    norm = nn.RMSNorm(256).bfloat16().cuda()
    x = torch.randn(8, 50, 256, device="cuda").bfloat16()
    torch.set_default_dtype(torch.bfloat16)
    try:
        blocks()
        out = norm(x)
        assert blocks() == [out.nbytes, 8 * 50 * 4]
    finally:
        torch.set_default_dtype(torch.float32)


def test_types_that_differ_are_taken_apart(blocks):
    norm, x = nn.RMSNorm(256).cuda(), torch.randn(8, 50, 256, device="cuda").half()
    blocks()
    norm(x)
    assert len(blocks()) > 4
