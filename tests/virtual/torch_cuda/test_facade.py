"""Devices as user code names them: factories, contexts, defaults, mixtures."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)

FACTORIES = {
    "zeros": lambda: torch.zeros(2, device="cuda"),
    "zeros(0)": lambda: torch.zeros(0, device="cuda"),
    "zeros, index": lambda: torch.zeros(2, device=0),
    "zeros, cuda:0": lambda: torch.zeros(2, device="cuda:0"),
    "ones": lambda: torch.ones((2, 3), device=torch.device("cuda")),
    "full": lambda: torch.full((2,), 1.0, device="cuda"),
    "full, integer": lambda: torch.full((2,), 1, device="cuda"),
    "arange": lambda: torch.arange(3, device="cuda"),
    "rand": lambda: torch.rand(2, device="cuda"),
    "randn": lambda: torch.randn(2, 2, device="cuda"),
    "randint": lambda: torch.randint(0, 5, (2,), device="cuda"),
    "randperm": lambda: torch.randperm(4, device="cuda"),
    "normal": lambda: torch.normal(0.0, 1.0, (2,), device="cuda"),
    "eye": lambda: torch.eye(3, device="cuda"),
    "linspace": lambda: torch.linspace(0, 1, 5, device="cuda"),
    "logspace": lambda: torch.logspace(0, 1, 5, device="cuda"),
    "empty": lambda: torch.empty(3, device="cuda"),
    "empty_strided": lambda: torch.empty_strided((2, 2), (2, 1), device="cuda"),
    "tensor": lambda: torch.tensor([1, 2], device="cuda"),
    "tensor of tensor": lambda: torch.tensor(torch.ones(2, device="cuda")),
    "as_tensor": lambda: torch.as_tensor([1.0], device="cuda"),
    "as_tensor of array": lambda: torch.as_tensor(np.ones(3), device="cuda"),
    "asarray": lambda: torch.asarray([1.0], device="cuda"),
    "scalar_tensor": lambda: torch.scalar_tensor(1.0, device="cuda"),
    "tril_indices": lambda: torch.tril_indices(3, 3, device="cuda"),
    "hann_window": lambda: torch.hann_window(4, device="cuda"),
    "from_numpy": lambda: torch.from_numpy(np.zeros(3)).to("cuda"),
    "zeros_like": lambda: torch.zeros_like(torch.zeros(2), device="cuda"),
    "new_zeros": lambda: torch.zeros(2).new_zeros(3, device="cuda"),
    "parameter": lambda: nn.Linear(2, 2, device="cuda").weight,
    "half": lambda: torch.zeros(2, device="cuda", dtype=torch.float16),
    "complex": lambda: torch.zeros(2, device="cuda", dtype=torch.complex64),
    "one_hot": lambda: nn.functional.one_hot(torch.tensor([1, 0], device="cuda")),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_factories_make_device_tensors(make):
    made = make()
    assert made.device == CUDA
    assert (made.is_cuda, made.is_cpu, made.get_device()) == (True, False, 0)


LIKE = {
    "zeros_like": torch.zeros_like,
    "rand_like": torch.rand_like,
    "empty_like": torch.empty_like,
    "new_zeros": lambda x: x.new_zeros(3),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "new_full": lambda x: x.new_full((2,), 3.0),
    "clone": torch.clone,
    "transpose": torch.t,
    "slice": lambda x: x[:, 1:],
    "mask": lambda x: x[x > 0],
    "reshape": lambda x: x.reshape(3, 2),
    "compare": lambda x: x > 0,
    "cat": lambda x: torch.cat([x, x]),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "sum": torch.sum,
    "max": lambda x: x.max(1).indices,
    "topk": lambda x: x.topk(1).values,
    "nonzero": torch.nonzero,
    "cast": lambda x: x.long(),
    "pad": lambda x: nn.functional.pad(x, (1, 1)),
    "out": lambda x: torch.mul(x, 2, out=torch.empty(0, device=x.device)),
}


@pytest.mark.parametrize("derive", LIKE.values(), ids=LIKE)
def test_what_comes_of_device_tensors_is_on_the_device(derive):
    x = torch.arange(6.0).reshape(2, 3)
    on_device, on_host = derive(x.to("cuda")), derive(x)
    assert (on_device.is_cuda, on_host.is_cuda) == (True, False)
    if derive not in (torch.rand_like, torch.empty_like):
        assert torch.equal(on_device.cpu(), on_host)


def test_a_context_names_the_device_and_ends():
    with torch.device("cuda"):
        made = [torch.zeros(3), torch.tensor([1.0]), torch.arange(4), nn.Linear(2, 2).weight]
        assert all(tensor.is_cuda for tensor in made)
        assert not torch.zeros(2, device="cpu").is_cuda
        with torch.device("cpu"):
            assert not torch.zeros(3).is_cuda
            with torch.device("cuda:0"):
                assert torch.zeros(3).is_cuda
        assert torch.zeros(3).is_cuda
    assert not torch.zeros(3).is_cuda


def test_the_default_device():
    torch.set_default_device("cuda")
    try:
        net = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3))
        net(torch.ones(2, 3))[0].sum().backward()
        assert net[0].weight.grad.is_cuda
        assert torch.get_default_device() == CUDA
        assert not torch.from_numpy(np.ones(2)).is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(3).is_cuda


def test_device_contexts_of_torch_cuda():
    with torch.cuda.device(0), torch.cuda.device("cuda:0"):
        assert torch.cuda.current_device() == 0
        assert torch.ones(1, device="cuda").is_cuda
    with torch.cuda.device_of(torch.zeros(1, device="cuda")):
        pass


@pytest.mark.parametrize("ask", [lambda x: x.to("cuda:1"), lambda x: torch.zeros(2, device=1)])
def test_a_card_that_is_not_there(ask):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        ask(torch.zeros(3))


def test_sparse_and_nested_tensors_of_the_host_go_on_working():
    assert (torch.eye(3).to_sparse() @ torch.ones(3, 2)).shape == (3, 2)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert (nested * 2).values().tolist() == [2.0] * 5
    assert torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).is_nested
    with pytest.raises(NotImplementedError, match="virtual GPU"):
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda")


def warn_twice_removed():
    warnings.warn("of the caller's caller", stacklevel=3)


def call_it():
    warn_twice_removed()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_warnings_of_torch_name_the_users_line(device):
    x = torch.ones(2, 2, device=device)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.nn.functional.softmax(x)
        torch.nn.functional.tanh(torch.nn.functional.log_softmax(x))
        call_it()
        warnings.warn("here", stacklevel=1)
        warnings.warn("beyond the outermost frame", stacklevel=1000)
    assert len(told) >= 5
    own = [each for each in told if "beyond" not in str(each.message)]
    assert {each.filename for each in own} == {__file__}
    first = told[0].lineno
    assert [each.lineno - first for each in own][:2] == [0, 1]
    assert [each.lineno - first for each in own][-2:] == [2, 3]
