"""Element types that the CPU's kernels do not take are computed in wider ones."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.virtual.precision import lacks_dtype, run_wider

REFUSAL = RuntimeError("\"some_cpu\" not implemented for 'Half'")


def test_integers_are_counted_as_on_cuda(gpu):
    experts = torch.tensor([0, 1, 1, 3], device="cuda", dtype=torch.int32)
    counts = torch.histc(experts, bins=4, min=0, max=3)
    assert (counts.is_cuda, counts.dtype, counts.tolist()) == (True, torch.int32, [1, 2, 0, 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_come_back_in_the_type_of_the_arguments(dtype):
    x = torch.tensor([1.0, 2.0], dtype=dtype)
    assert lacks_dtype(REFUSAL, torch.ops.aten.exp.default, (x,))
    out = run_wider(torch.ops.aten.exp.default, (x,), {})
    assert out.dtype is dtype
    assert torch.equal(out, x.float().exp().to(dtype))
    values, indices = run_wider(torch.ops.aten.sort.default, (x,), {})
    assert (values.dtype, indices.dtype) == (dtype, torch.int64)


def test_what_is_written_in_place_is_written_to_the_original():
    x = torch.tensor([1.0, 2.0], dtype=torch.float16)
    out = run_wider(torch.ops.aten.mul_.Tensor, (x, torch.tensor(3.0, dtype=torch.float16)), {})
    assert out is x
    assert x.tolist() == [3, 6]


@pytest.mark.parametrize(
    ("error", "dtype"), [(REFUSAL, torch.float32), (RuntimeError("shapes differ"), torch.float16)]
)
def test_other_refusals_stand(error, dtype):
    assert not lacks_dtype(error, torch.ops.aten.exp.default, (torch.ones(2, dtype=dtype),))
