"""Single operators, forward and backward: dry runs against torch's CUDA code on the stub device."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from tests.benches import benchmark_module

pytestmark = pytest.mark.skipif(
    not (os.environ.get("GPUMEM_STUB") and os.environ.get("GPUMEM_STUB_PYTHON")),
    reason="needs the stub device: set GPUMEM_STUB (folder of run.sh) and GPUMEM_STUB_PYTHON",
)

SAME = [
    "torch.cumprod(x,1)",
    "F.soft_margin_loss(x,torch.rand_like(x).sign())",
    "x.scatter_reduce(1,torch.zeros(256,4096,dtype=torch.long,**D),x,'amax')",
    "x.index_reduce(0,torch.zeros(8,dtype=torch.long,**D),x,'amax')",
    "F.layer_norm(x,(4096,))",
]


@pytest.fixture(scope="module")
def benchmark():
    """The benchmark, as a module."""
    with benchmark_module("operators") as module:
        yield module


@pytest.fixture(scope="module")
def runners(benchmark):
    with benchmark.Runners(benchmark.PATIENCE) as runners:
        yield runners


@pytest.mark.parametrize("name", SAME)
def test_an_operator_asks_for_what_it_asks_for_on_cuda(benchmark, runners, name):
    operator = next(one for one in benchmark.operators([name]) if one.name == name)
    found = benchmark.compare(runners, operator)
    assert found.error == ""
    assert found.events == ()
    assert found.allocated == found.reserved == 0
