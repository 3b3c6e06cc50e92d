"""Refusals in CUDA's words, and the rarer forms of moving, saving and converting tensors."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)
TWO_DEVICES = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
    "cpu! (when checking argument for argument {} in method wrapper_CUDA_{})"
)
INDICES = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"

# What mixes a device tensor `d` and a host tensor `h`, and what CUDA says of it.
REFUSED = {
    "add": (lambda d, h: d + h, TWO_DEVICES.format("other", "add")),
    "add_": (lambda d, h: h.add_(d), TWO_DEVICES.format("self", "add_")),
    "mul": (lambda d, h: h * d, TWO_DEVICES.format("self", "mul")),
    "cat": (lambda d, h: torch.cat([h, d]), TWO_DEVICES.format("tensors", "cat")),
    "gather": (
        lambda d, h: d.gather(0, torch.tensor([0])),
        TWO_DEVICES.format("index", "gather"),
    ),
    "masked_fill": (
        lambda d, h: d.masked_fill(h > 0, 1.0),
        TWO_DEVICES.format("mask", "masked_fill"),
    ),
    "embedding": (
        lambda d, h: nn.Embedding(3, 2).cuda()(torch.tensor([1])),
        TWO_DEVICES.format("index", "index_select"),
    ),
    "linear": (
        lambda d, h: nn.Linear(3, 2).cuda()(h[None]),
        TWO_DEVICES.format("mat1", "addmm"),
    ),
    "write by index": (
        lambda d, h: d.__setitem__(torch.tensor([0, 1]), h[:2]),
        TWO_DEVICES.format("values", "index_put_"),
    ),
    "write by mask": (
        lambda d, h: d.__setitem__(d >= 0, h),
        TWO_DEVICES.format("values", "index_put_"),
    ),
    "write to the host": (
        lambda d, h: h.__setitem__(torch.tensor([0]), d[:1]),
        TWO_DEVICES.format("self", "index_put_"),
    ),
    "device indices of a host tensor": (lambda d, h: h[d.long()], INDICES),
    "device mask of a host tensor": (lambda d, h: h.__setitem__(d > 0, 1.0), INDICES),
    "recurrent input": (
        lambda d, h: nn.LSTM(3, 2).cuda()(h[None]),
        "Input and parameter tensors are not at the same device, found input tensor at cpu and "
        "parameter tensor at cuda:0",
    ),
    "recurrent weights": (
        lambda d, h: nn.GRU(3, 2)(d[None]),
        "Input and parameter tensors are not at the same device, found input tensor at cuda:0 and "
        "parameter tensor at cpu",
    ),
    "recurrent state": (
        lambda d, h: nn.LSTM(3, 2).cuda()(d[None], (torch.zeros(1, 2), torch.zeros(1, 2))),
        "Input and hidden tensors are not at the same device, found input tensor at cuda:0 and "
        "hidden tensor at cpu",
    ),
    "attention": (
        lambda d, h: nn.functional.scaled_dot_product_attention(
            *(x.reshape(1, 1, 1, 3) for x in (d, h, h))
        ),
        "Expected query, key, and value to have the same device type, but got query.device: cuda:0 "
        "key.device: cpu and value.device: cpu instead.",
    ),
    "gradient": (
        lambda d, h: (d.requires_grad_() * 2).backward(h),
        "invalid gradient at index 0 - expected device cuda:0 but got cpu",
    ),
}


@pytest.mark.parametrize(("mix", "text"), REFUSED.values(), ids=REFUSED)
def test_mixtures_are_refused_in_cudas_words(mix, text):
    with pytest.raises(RuntimeError) as refusal:
        mix(torch.arange(3.0, device="cuda"), torch.arange(3.0))
    assert str(refusal.value) == text


ALLOWED = {
    "host indices": (lambda d: d[torch.tensor([2, 0])], [2.0, 0.0]),
    "host mask": (lambda d: d[torch.tensor([True, False, True])], [0.0, 2.0]),
    "device and host indices": (lambda d: d[None][d[:1].long(), torch.tensor([1])], [1.0]),
    "number of the host": (lambda d: d + torch.tensor(1.0), [1.0, 2.0, 3.0]),
    "number of the device": (lambda d: d * d[2], [0.0, 2.0, 4.0]),
    "fill": (lambda d: d.fill_(torch.tensor(2.0)), [2.0, 2.0, 2.0]),
    "clamp": (lambda d: d.clamp(max=torch.tensor(1.0)), [0.0, 1.0, 1.0]),
    "packed": (lambda d: torch.tensor_split(d, torch.tensor([1]))[1], [1.0, 2.0]),
}


@pytest.mark.parametrize(("mix", "values"), ALLOWED.values(), ids=ALLOWED)
def test_what_cuda_takes_of_the_host_is_taken(mix, values):
    mixed = mix(torch.arange(3.0, device="cuda"))
    assert (mixed.device, mixed.tolist()) == (CUDA, values)


def test_writes_by_index_take_numbers_and_device_tensors():
    d = torch.zeros(4, device="cuda")
    d[torch.tensor([0, 3])] = torch.ones(2, device="cuda")
    d[torch.tensor([1])] = torch.tensor(5.0)
    d[2:3] = torch.tensor([7.0])  # a copy, which may cross
    assert d.tolist() == [1, 5, 7, 1]


def test_a_number_as_gradient_follows_its_output():
    x = torch.ones(3, device="cuda", requires_grad=True)
    (x * 2).sum().backward(torch.tensor(3.0))
    assert (x.grad.device, x.grad.tolist()) == (CUDA, [6, 6, 6])


@pytest.mark.parametrize("device", [0, "cuda", "cuda:0", torch.device("cuda"), None])
def test_the_forms_of_cuda(device):
    x = torch.arange(2.0)
    moved = x.cuda(device, non_blocking=True)
    assert (moved.device, moved.get_device(), moved.tolist()) == (CUDA, 0, [0, 1])
    assert nn.Linear(2, 2).cuda(device).weight.device == CUDA


@pytest.mark.parametrize("device", [0, "cuda", torch.device("cuda"), torch.zeros(1)])
def test_the_forms_of_to_for_modules(device):
    device = device.cuda() if isinstance(device, torch.Tensor) else device
    net = nn.Linear(2, 2)
    weight = net.weight
    assert net.to(device).weight is weight
    assert weight.device == CUDA
    assert net.to(torch.float16).to("cpu").weight.device.type == "cpu"
    assert net.to(device, non_blocking=True).bias.device == CUDA


def test_to_takes_type_and_device_from_another_tensor():
    half = torch.zeros(1, dtype=torch.float16, device="cuda")
    x = torch.arange(2.0)
    assert (x.to(half).device, x.to(half).dtype) == (CUDA, torch.float16)
    assert (half.to(x).device.type, half.to(other=x).dtype) == ("cpu", torch.float32)
    assert half.to(torch.float64).device == CUDA


@pytest.mark.parametrize("device", ["cuda:1", 1, torch.device("cuda", 3)])
def test_there_is_one_card(device):
    moves = torch.zeros(2).to, torch.zeros(2).cuda, nn.Linear(2, 2).to
    for move in moves:
        with pytest.raises(RuntimeError, match=r"^CUDA error: invalid device ordinal"):
            move(device)


def test_gradients_cross_back_and_keep_their_type():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    y = x.to("cuda", torch.float16).to("cpu", torch.float32).cuda()
    (y * torch.arange(3.0, device="cuda")).sum().backward()
    assert (x.grad.device.type, x.grad.dtype) == ("cpu", torch.float64)
    assert x.grad.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["torch.FloatTensor", torch.FloatTensor])
def test_types_of_the_host_move_to_the_host(kind):
    back = torch.arange(2, device="cuda").type(kind)
    assert (back.device.type, back.dtype, back.tolist()) == ("cpu", torch.float32, [0, 1])
    assert torch.arange(2, device="cuda").type(torch.float32).device == CUDA


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("where", "device"),
    [
        (None, "cuda"),
        ("cuda", "cuda"),
        ("cuda:0", "cuda"),
        (torch.device("cuda"), "cuda"),
        ("cpu", "cpu"),
        (torch.device("cpu"), "cpu"),
        ({"cuda:0": "cpu"}, "cpu"),
        ({"cpu": "cuda:0"}, "cuda"),
        (lambda storage, location: storage.cuda(0), "cuda"),
    ],
)
def test_a_file_of_the_device_is_loaded_where_the_user_says(where, device):
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    loaded = torch.load(saved({"x": x, "part": x[1]}), map_location=where)
    assert [value.device.type for value in loaded.values()] == [device, device]
    assert loaded["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    loaded["x"][1] = 9.0
    assert loaded["part"].tolist() == [9, 9, 9]


@pytest.mark.parametrize(("where", "device"), [(None, "cpu"), ("cuda", "cuda"), (CUDA, "cuda")])
def test_a_file_of_the_host_is_loaded_where_the_user_says(where, device):
    loaded = torch.load(saved(torch.arange(3.0)), map_location=where)
    assert (loaded.device.type, loaded.tolist()) == (device, [0, 1, 2])


def test_a_file_is_the_same_as_from_a_gpu():
    # GIVEN a file whose storages say cuda:0, as a GPU's do
    file = saved(torch.arange(3.0, device="cuda"))
    assert b"cuda:0" in file.getvalue()
    # THEN loading it takes a block of the allocator
    before = torch.cuda.memory_allocated()
    loaded = torch.load(file)
    assert torch.cuda.memory_allocated() - before == 512
    del loaded
    assert torch.cuda.memory_allocated() == before


def test_copies_have_blocks_of_their_own_and_keep_their_kind(allocated):
    weight = nn.Parameter(torch.ones(1000, device="cuda"))
    weight.sum().backward()
    twin = copy.deepcopy(weight)
    assert allocated() == 3 * 4096  # torch does not copy the gradient of a parameter
    assert (twin.device, twin.grad, type(twin)) == (CUDA, None, nn.Parameter)
    thawed = pickle.loads(pickle.dumps(weight))
    assert (thawed.device, thawed.requires_grad, type(thawed)) == (CUDA, True, nn.Parameter)
    assert allocated() == 4 * 4096


def test_storages_tell_the_device():
    x = torch.arange(3.0, device="cuda")
    storage = x.untyped_storage()
    assert (storage.device, storage.is_cuda, storage.cpu().device.type) == (CUDA, True, "cpu")
    assert storage.clone().device == CUDA
    assert torch.arange(3.0).untyped_storage().cuda().device == CUDA


def test_batched_gradients_of_the_device_are_taken():
    """As `torch.autograd.functional.jacobian(..., vectorize=True)` makes them."""
    x = torch.ones(3, device="cuda", requires_grad=True)
    many = torch.eye(3, device="cuda")
    (found,) = torch.autograd.grad(2 * x, x, many, is_grads_batched=True)
    assert (found.device, found.tolist()) == (CUDA, (2 * torch.eye(3)).tolist())


def test_what_was_loaded_stays_on_the_device_when_garbage_is_collected(allocated):
    file = io.BytesIO()
    torch.save(nn.Linear(32, 32, bias=False).cuda(), file)
    file.seek(0)
    before = allocated()
    loaded = torch.load(file, weights_only=False)
    gc.collect()  # torch.load's own circles of references hold the storages, too
    assert loaded.weight.is_cuda
    assert allocated() - before == 4096
    del loaded
    gc.collect()
    assert allocated() == before
