"""Factories, views, writes and contexts: the same values as on the host, on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)

# Every factory whose values do not depend on chance.
EXACT = {
    "zeros": lambda **on: torch.zeros(2, 3, **on),
    "ones": lambda **on: torch.ones((2, 3), **on),
    "full": lambda **on: torch.full((2,), 1.5, **on),
    "arange": lambda **on: torch.arange(1, 9, 2, **on),
    "range of floats": lambda **on: torch.arange(0.0, 1.0, 0.25, **on),
    "eye": lambda **on: torch.eye(3, 4, **on),
    "linspace": lambda **on: torch.linspace(0, 1, 5, **on),
    "logspace": lambda **on: torch.logspace(0, 1, 5, **on),
    "tensor": lambda **on: torch.tensor([[1, 2], [3, 4]], **on),
    "scalar": lambda **on: torch.tensor(2.5, **on),
    "scalar_tensor": lambda **on: torch.scalar_tensor(1.0, **on),
    "as_tensor": lambda **on: torch.as_tensor([1.0, 2.0], **on),
    "as_tensor of array": lambda **on: torch.as_tensor(np.arange(3), **on),
    "asarray": lambda **on: torch.asarray([True, False], **on),
    "tril_indices": lambda **on: torch.tril_indices(3, 3, **on),
    "triu_indices": lambda **on: torch.triu_indices(3, 3, 1, **on),
    "hann_window": lambda **on: torch.hann_window(4, **on),
    "bartlett_window": lambda **on: torch.bartlett_window(4, **on),
    "zeros of type": lambda **on: torch.zeros(3, dtype=torch.bfloat16, **on),
    "vander": lambda **on: torch.vander(torch.arange(3.0, **on)),
    "complex": lambda **on: torch.complex(torch.ones(2, **on), torch.zeros(2, **on)),
    "polar": lambda **on: torch.polar(torch.ones(2, **on), torch.zeros(2, **on)),
    "meshgrid": lambda **on: torch.meshgrid(torch.arange(2, **on), indexing="ij")[0],
    "block_diag": lambda **on: torch.block_diag(torch.ones(2, 2, **on), torch.ones(1, 1, **on)),
    "one_hot": lambda **on: nn.functional.one_hot(torch.tensor([2, 0], **on)),
    "fftfreq": lambda **on: torch.fft.fftfreq(4, **on),
}


@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("device", ["cuda", 0, CUDA])
def test_factories_make_the_values_that_the_host_makes(make, device):
    made, expected = make(device=device), make()
    assert made.device == CUDA
    assert (made.dtype, made.shape, made.stride()) == (
        expected.dtype,
        expected.shape,
        expected.stride(),
    )
    assert torch.equal(made.cpu(), expected)


RANDOM = {
    "rand": lambda **on: torch.rand(2, 3, **on),
    "randn": lambda **on: torch.randn(2, 3, dtype=torch.float64, **on),
    "randint": lambda **on: torch.randint(0, 9, (2, 3), **on),
    "randperm": lambda **on: torch.randperm(6, **on),
    "normal": lambda **on: torch.normal(0.0, 1.0, (2, 3), **on),
    "rand_like": lambda **on: torch.rand_like(torch.zeros(2, 3, **on)),
    "randint_like": lambda **on: torch.randint_like(torch.zeros(2, 3, **on), 9),
    "uniform_": lambda **on: torch.empty(2, 3, **on).uniform_(),
    "bernoulli": lambda **on: torch.bernoulli(torch.full((2, 3), 0.5, **on)),
    "multinomial": lambda **on: torch.multinomial(torch.ones(6, **on), 3),
    "trunc_normal_": lambda **on: nn.init.trunc_normal_(torch.empty(2, 3, **on)),
    "orthogonal_": lambda **on: nn.init.orthogonal_(torch.empty(2, 3, **on)),
}


@pytest.mark.parametrize("draw", RANDOM.values(), ids=RANDOM)
def test_random_factories_follow_the_seed(draw):
    torch.manual_seed(7)
    first = draw(device="cuda")
    second = draw(device="cuda")
    torch.manual_seed(7)
    again = draw(device="cuda")
    assert first.device == CUDA
    assert torch.equal(first, again)
    assert not torch.equal(first, second) or first.dtype == torch.int64


DERIVED = {
    "zeros_like": torch.zeros_like,
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.int64),
    "full_like": lambda x: torch.full_like(x, 3.0),
    "new_zeros": lambda x: x.new_zeros(3),
    "new_ones": lambda x: x.new_ones((2, 2), dtype=torch.int32),
    "new_full": lambda x: x.new_full((2,), 3.0),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "tensor of tensor": lambda x: x.clone().detach(),
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.t().reshape(-1),
    "slice": lambda x: x[:, 1:],
    "step": lambda x: x[::2, ::2],
    "ellipsis": lambda x: x[..., None, 0],
    "index": lambda x: x[[1, 0]],
    "index pair": lambda x: x[[0, 1], [2, 1]],
    "mask": lambda x: x[x > 2],
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "diagonal": lambda x: x.diagonal(),
    "expand": lambda x: x.expand(4, 2, 3),
    "permute": lambda x: x.permute(1, 0).contiguous(),
    "movedim": lambda x: x.movedim(0, 1),
    "squeeze": lambda x: x[None].squeeze(0),
    "flatten": torch.flatten,
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: torch.split(x, [1, 2], 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "repeat": lambda x: x.repeat(2, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=0),
    "tile": lambda x: x.tile(2),
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(0),
    "tril": torch.tril,
    "where": lambda x: torch.where(x > 2, x, 0.0),
    "gather": lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64, device=x.device)),
    "scatter": lambda x: x.scatter(1, x[:, :1].long() % 3, 9.0),
    "index_select": lambda x: x.index_select(1, torch.tensor([2], device=x.device)),
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 0], device=x.device), x),
    "masked_select": lambda x: x.masked_select(x > 1),
    "nonzero": torch.nonzero,
    "sort": lambda x: x.sort(descending=True).values,
    "argsort": lambda x: x.argsort(descending=True),
    "topk": lambda x: x.topk(2).indices,
    "unique": lambda x: torch.unique(x % 3),
    "bincount": lambda x: torch.bincount(x.long().flatten()),
    "histc": lambda x: torch.histc(x, 3),
    "searchsorted": lambda x: torch.searchsorted(x[0], x[1]),
    "cumsum": lambda x: x.cumsum(1),
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "mean": lambda x: x.mean(0),
    "std": lambda x: x.std(),
    "max": lambda x: x.max(1).values,
    "median": lambda x: x.median(),
    "norm": torch.linalg.norm,
    "cdist": lambda x: torch.cdist(x, x),
    "fft": torch.fft.fft,
    "svd": torch.linalg.svdvals,
    "softmax": lambda x: x.softmax(1),
    "cast": lambda x: x.to(torch.int8),
    "bool": lambda x: x.bool(),
    "bits": lambda x: x.view(torch.int32),
    "complex": lambda x: torch.view_as_real(x.to(torch.complex64)),
    "pad": lambda x: nn.functional.pad(x, (1, 1)),
    "interpolate": lambda x: nn.functional.interpolate(x[None], size=6),
    "grid_sample": lambda x: nn.functional.grid_sample(
        x[None, None], x.new_zeros(1, 2, 2, 2), align_corners=False
    ),
    "numpy number": lambda x: x * np.float32(2),
    "host number": lambda x: 2 - x,
}


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
def test_what_comes_of_device_tensors_has_the_values_of_the_host(derive):
    x = torch.arange(6.0).reshape(2, 3)
    on_device, on_host = derive(x.cuda()), derive(x)
    assert on_device.device == CUDA
    assert (on_device.dtype, on_device.stride()) == (on_host.dtype, on_host.stride())
    assert torch.equal(on_device.cpu(), on_host)


def add_to_columns(x):
    x[:, 1] += 5


def write_by_mask(x):
    x[x > 3] = -1.0


def write_by_indices(x):
    x[[0, 1], [1, 2]] = torch.tensor([8.0, 9.0], device=x.device)


def write_a_row(x):
    x[0] = torch.tensor([7.0, 8.0, 9.0], device=x.device)


def write_a_number(x):
    x[0, 0] = 2
    x[-1] = torch.tensor(3.0)


WRITES = {
    "augmented": add_to_columns,
    "mask": write_by_mask,
    "indices": write_by_indices,
    "row": write_a_row,
    "number": write_a_number,
    "chain": lambda x: x.add_(1).mul_(2).clamp_(0, 5),
    "view": lambda x: x.view(-1)[1:3].zero_(),
    "transposed": lambda x: x.t().copy_(x.t().flip(0)),
    "index_fill_": lambda x: x.index_fill_(1, torch.tensor([0], device=x.device), 4.0),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([1], device=x.device), x[:1] + 1),
    "scatter_add_": lambda x: x.scatter_add_(1, torch.ones_like(x, dtype=torch.int64), x + 0),
    "masked_fill_": lambda x: x.masked_fill_(x > 2, 0.5),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 2, x.flip(0)),
    "put_": lambda x: x.put_(torch.tensor([5], device=x.device), torch.ones(1, device=x.device)),
    "out": lambda x: torch.mul(x, 2, out=x),
    "fill_diagonal_": lambda x: x.fill_diagonal_(7),
    "foreach": lambda x: torch._foreach_mul_([x[0], x[1]], 3.0),
    "data": lambda x: x.data.mul_(3),
    "resize": lambda x: x.resize_(2, 2),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_change_the_tensor_in_place_as_on_the_host(write, allocated):
    host = torch.arange(6.0).reshape(2, 3)
    device = host.cuda()
    address = device.data_ptr()
    write(host)
    write(device)
    assert (device.device, device.data_ptr()) == (CUDA, address)
    assert torch.equal(device.cpu(), host)
    assert allocated() == 512


def test_views_share_and_keep_what_they_view(allocated):
    x = torch.zeros(1000, device="cuda")
    view = x.view(10, 100)[3:5].t()
    view += 1
    assert x.sum().item() == 200
    del x
    assert allocated() == 4096
    assert view.untyped_storage().nbytes() == 4000
    del view
    assert allocated() == 0


def test_the_like_of_a_tensor_can_be_on_the_other_device():
    host, device = torch.zeros(2), torch.zeros(2, device="cuda")
    assert torch.ones_like(host, device="cuda").device == CUDA
    assert torch.ones_like(device, device="cpu").tolist() == [1, 1]
    assert torch.ones_like(device, device="cpu").device.type == "cpu"
    assert host.new_ones(2, device="cuda").device == CUDA
    assert host.new_tensor([1], device="cuda").device == CUDA
    assert device.new_zeros(2, device="cpu").device.type == "cpu"
    assert device.new_tensor([1], device="cpu").device.type == "cpu"


def test_contexts_nest_and_arguments_come_before_them():
    host = torch.ones(2)
    with torch.device("cuda"):
        made = [torch.zeros(3), torch.tensor([1.0]), torch.arange(4), torch.rand(2), torch.eye(2)]
        made += nn.LSTM(2, 2).parameters()
        assert {tensor.device for tensor in made} == {CUDA}
        assert torch.zeros(2, device="cpu").device.type == "cpu"
        assert torch.zeros_like(host).device.type == "cpu"
        assert torch.as_tensor(host).device == CUDA  # as torch.as_tensor(host) does on a GPU
        with torch.device("cpu"):
            assert torch.zeros(3).device.type == "cpu"
        with torch.device("meta"):
            assert torch.zeros(3).device.type == "meta"
        assert torch.zeros(3).device == CUDA
    assert torch.zeros(3).device.type == "cpu"


def test_a_context_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), torch.device("cuda"):
        1 / 0  # noqa: B018
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", CUDA])
def test_the_default_device_holds_until_it_is_taken_back(device):
    assert torch.get_default_device() == torch.device("cpu")
    torch.set_default_device(device)
    try:
        assert torch.get_default_device() == CUDA
        made = [torch.zeros(3), torch.tensor([1]), torch.full((2,), 1.0), nn.Linear(2, 2).weight]
        assert {tensor.device for tensor in made} == {CUDA}
        with torch.device("cpu"):
            assert torch.zeros(3).device.type == "cpu"
        assert torch.ones(2, device="cpu").device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch.zeros(3).device.type == "cpu"
    assert torch.get_default_device() == torch.device("cpu")


def test_the_current_device_is_the_only_one():
    for device in (0, "cuda:0", CUDA):
        torch.cuda.set_device(device)
    for device in (0, "cuda", "cuda:0", CUDA, None):
        with torch.cuda.device(device):
            assert torch.cuda.current_device() == 0
            assert torch.zeros(1, device="cuda").device == CUDA
            assert torch.zeros(1).device.type == "cpu"
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(1)
    with pytest.raises(RuntimeError, match="invalid device ordinal"), torch.cuda.device(1):
        pass


def test_a_tensor_says_where_it_is():
    device, host = torch.zeros(1, device="cuda"), torch.zeros(1)
    assert (device.device.type, device.device.index, str(device.device)) == ("cuda", 0, "cuda:0")
    assert (device.is_cuda, device.is_cpu, device.get_device()) == (True, False, 0)
    assert (host.is_cuda, host.is_cpu, host.get_device()) == (False, True, -1)
    assert torch.tensor([1, 2], device="cuda").__repr__() == "tensor([1, 2], device='cuda:0')"
    assert repr(nn.Parameter(device)) == (
        "Parameter containing:\ntensor([0.], device='cuda:0', requires_grad=True)"
    )
