"""Attention over jagged nested tensors, which asks for kernels that the host does not have."""

from __future__ import annotations

import pytest

from gpumem_magic import predict

CELL = """
import torch
make = dict(device="cuda", dtype=torch.{dtype})
sequences = [torch.randn(n, 512, **make) for n in (50, 120, 256, 86)]
nested = torch.nested.nested_tensor(sequences, layout=torch.jagged, requires_grad=True)
q, k, v = torch.nn.Linear(512, 1536, **make)(nested).chunk(3, -1)
q, k, v = (each.unflatten(-1, [8, 64]).transpose(1, 2) for each in (q, k, v))
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
out.transpose(1, 2).flatten(-2).to_padded_tensor(0.0).sum().backward()
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fused_kernel_is_taken_and_its_gradients_stay_on_the_card(dtype):
    report = predict(CELL.format(dtype=dtype), {}, gpu="L4")
    assert report.error is None
    attention = next(line for line in report.lines if "scaled_dot" in line.source)
    rows, width = 512 * 512, {"float32": 4, "bfloat16": 2}[dtype]
    assert rows * width <= attention.allocated < 1.1 * rows * width  # no matrix of all pairs
