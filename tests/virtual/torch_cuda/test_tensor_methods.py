"""Transfers in all their forms, and what a tensor tells of itself."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("arguments", "options", "dtype"),
    [
        (("cuda",), {}, torch.float32),
        (("cuda:0",), {}, torch.float32),
        ((torch.device("cuda"),), {}, torch.float32),
        ((0,), {}, torch.float32),
        (("cuda", torch.float16), {}, torch.float16),
        ((torch.device("cuda"), torch.float64, True), {}, torch.float64),
        ((), {"device": "cuda", "non_blocking": True, "copy": True}, torch.float32),
        ((), {"device": "cuda", "dtype": torch.half}, torch.float16),
    ],
)
def test_the_forms_of_to(arguments, options, dtype):
    source = torch.arange(3.0)
    moved = source.to(*arguments, **options)
    assert (moved.device, moved.dtype) == (CUDA, dtype)
    assert moved.cpu().tolist() == [0, 1, 2]
    assert not source.is_cuda


def test_type_as_moves_to_the_device_of_the_other_and_back(allocated):
    like = torch.zeros(10, dtype=torch.float16, device="cuda")
    before = allocated()
    moved = torch.ones(1000).type_as(like)
    assert (moved.device, moved.dtype) == (CUDA, torch.float16)
    assert allocated() - before == 2048
    assert moved.type_as(like) is moved
    back = moved.type_as(torch.zeros(1))
    assert (back.device.type, back.dtype, back.tolist()) == ("cpu", torch.float32, [1.0] * 1000)


def test_transfers_that_have_nothing_to_do_copy_nothing(gpu):
    x = torch.zeros(3, device="cuda")
    assert x.to("cuda") is x
    assert x.cuda() is x
    assert x.to(x) is x
    assert x.float() is x
    assert x.to("cuda", copy=True) is not x
    host = torch.zeros(3)
    assert host.cpu() is host
    assert host.to(other=host) is host


def test_the_way_back():
    x = torch.arange(3.0, device="cuda")
    for host in (x.cpu(), x.to("cpu"), x.to(torch.zeros(1)), x.to(torch.device("cpu"))):
        assert (host.device.type, host.is_cuda, host.get_device()) == ("cpu", False, -1)
        assert host.tolist() == [0, 1, 2]
    assert x.numpy(force=True).tolist() == [0, 1, 2]


def test_gradients_take_the_way_back():
    host = torch.randn(3, requires_grad=True)
    (host.to("cuda") * 2).sum().backward()
    assert host.grad.tolist() == [2, 2, 2]
    assert not host.grad.is_cuda
    device = torch.randn(3, requires_grad=True, device="cuda")
    (device.cpu() * 2).sum().backward()
    assert device.is_leaf
    assert device.grad.is_cuda


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, np.asarray, np.array])
def test_numpy_needs_a_host_tensor(convert):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        convert(torch.zeros(3, device="cuda"))


def test_types_by_name():
    x = torch.zeros(3, device="cuda")
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.half().type() == "torch.cuda.HalfTensor"
    assert x.type(torch.int64).dtype is torch.int64
    assert torch.zeros(3).type("torch.cuda.DoubleTensor").type() == "torch.cuda.DoubleTensor"
    assert torch.zeros(3).type() == "torch.FloatTensor"


def test_text_values_and_iteration():
    x = torch.tensor([1.0, 2.0], device="cuda")
    assert repr(x) == "tensor([1., 2.], device='cuda:0')"
    assert f"{x[0]:.3f}" == "1.000"
    assert (float(x[0]), int(x[1]), bool(x[0]), x[1].item()) == (1.0, 2, True, 2.0)
    assert [item.is_cuda for item in x] == [True, True]


def test_pinned_memory():
    host = torch.zeros(3)
    pinned = host.pin_memory()
    assert (pinned.is_pinned(), host.is_pinned()) == (True, False)
    assert pinned.pin_memory() is pinned
    assert torch.zeros(3, pin_memory=True).is_pinned()
    beside = torch.empty_like(torch.zeros(3, device="cuda"), device="cpu", pin_memory=True)
    assert (beside.is_pinned(), beside.is_cuda) == (True, False)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.zeros(3, device="cuda").pin_memory()


def test_saved_activations_may_wait_in_pinned_memory(allocated):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    x = torch.ones(32, 64, device="cuda")
    before = allocated()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = net(x).square().sum()
    assert allocated() - before == 512  # the loss alone
    loss.backward()
    assert net[0].weight.grad.is_cuda


@pytest.mark.parametrize("where", [None, "cuda", "cuda:0", "cpu", {"cuda:0": "cpu"}, CUDA])
def test_saving_and_loading(where):
    net = nn.Linear(3, 4).cuda()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, map_location=where)
    assert loaded["weight"].is_cuda == (where not in ("cpu", {"cuda:0": "cpu"}))
    assert torch.equal(loaded["weight"].cpu(), net.weight.cpu())
    net.load_state_dict(loaded)
    assert net.weight.is_cuda


def test_whole_modules_and_old_files():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).cuda()
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save(net, file, _use_new_zipfile_serialization=zipped)
        file.seek(0)
        assert torch.load(file, weights_only=False)[0].weight.is_cuda
        file.seek(0)
        assert not torch.load(file, weights_only=False, map_location="cpu")[0].weight.is_cuda


def test_copies_stay_on_the_device():
    x = torch.zeros(4, device="cuda")
    assert pickle.loads(pickle.dumps(x)).is_cuda
    whole, part = copy.deepcopy([x, x[1:]])
    assert whole.is_cuda
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    tied = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    tied[1].weight = tied[0].weight
    assert tied.cuda()[1].weight is tied[0].weight
    assert copy.deepcopy(tied)[1].weight.is_cuda


def test_modules_move_there_and_back(allocated):
    net = nn.Linear(128, 128)
    weight = net.weight
    net.cuda()
    assert net.weight is weight
    assert allocated() == 128 * 128 * 4 + 512
    net.half()
    assert allocated() == 128 * 128 * 2 + 512
    net.cpu()
    assert allocated() == 0
    assert torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight.is_cuda


def test_lazy_modules_move_before_they_are_made():
    net = nn.LazyLinear(4).cuda()
    assert net(torch.ones(2, 3, device="cuda")).is_cuda
    assert net.weight.shape == (4, 3)


class Noting(torch.Tensor):
    """A subclass that is asked about what is done with it."""

    asked: list = []  # noqa: RUF012 - read by the test

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.asked.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_of_tensors_stay_what_they_are():
    x = torch.ones(3).as_subclass(Noting)
    moved = x.to("cuda")
    assert (type(moved), moved.is_cuda) == (Noting, True)
    assert type(moved + 1) is Noting
    assert (moved + 1).is_cuda


def test_memory_formats_survive_the_transfer():
    image = torch.randn(2, 3, 4, 4).to("cuda", memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last)
    net = nn.Conv2d(3, 4, 3).cuda().to(memory_format=torch.channels_last)
    assert net(image).is_contiguous(memory_format=torch.channels_last)


def test_inside_vmap_and_grad_tensors_tell_their_device():
    seen = []

    def look(row):
        seen.append((row.device, row.is_cuda, row.is_cpu, row.get_device()))
        return (row * 2).sum()

    x = torch.ones(3, 4, device="cuda")
    assert torch.vmap(torch.func.grad(look))(x).device == CUDA
    torch.vmap(look)(torch.ones(3, 4))
    assert seen == [(CUDA, True, False, 0), (torch.device("cpu"), False, True, -1)]


class Wrapper(torch.Tensor):
    """A tensor that holds another one, as quantized weights do."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, device=held.device)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [arg.held if isinstance(arg, Wrapper) else arg for arg in args]
        return Wrapper(func(*args, **kwargs or {}))


def test_tensors_that_wrap_others_stay_on_the_device(allocated):
    x = torch.ones(256, device="cuda")
    before = allocated()
    out = Wrapper(x) * 2
    assert (out.device, out.held.device, out.is_cuda) == (CUDA, CUDA, True)
    assert out.held.tolist() == [2.0] * 256
    assert allocated() - before == x.nbytes


def test_other_libraries_are_not_given_the_devices_memory():
    x = torch.ones(3, device="cuda")
    with pytest.raises(BufferError, match="Unsupported device"):
        np.from_dlpack(x)
    shared = torch.from_dlpack(x)
    assert (shared.device, shared.data_ptr()) == (CUDA, x.data_ptr())
    assert np.from_dlpack(torch.ones(3)).tolist() == [1, 1, 1]


def test_a_storage_that_is_resized_takes_another_block():
    allocated = torch.cuda.memory_allocated
    before = allocated()
    x = torch.ones(1 << 20, dtype=torch.uint8, device="cuda")
    x.untyped_storage().resize_(0)
    assert (allocated() - before, x.device) == (0, CUDA)
    torch.cuda.reset_peak_memory_stats()
    x.untyped_storage().resize_(4 << 20)
    x.fill_(3)
    x.untyped_storage().resize_(1 << 20)
    assert allocated() - before == 1 << 20
    assert torch.cuda.max_memory_allocated() - before == 5 << 20
    assert x.tolist()[:3] == [3, 3, 3]


def test_a_tensor_around_others_is_where_they_are():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            assert func is torch.ops.aten.copy_.default
            args[0].inner.copy_(args[1])
            return args[0]

    there = Wrapper(torch.zeros(3, device="cuda"))
    assert (there.device, there.is_cuda, there.is_cpu, there.get_device()) == (CUDA, True, False, 0)
    assert there.copy_(torch.ones(3, device="cuda")) is there
    assert there.inner.tolist() == [1, 1, 1]
    assert Wrapper(torch.zeros(3)).device == torch.device("cpu")
