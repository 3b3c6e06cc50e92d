"""On and off leave no trace: attributes, modes, operators, autocast, threads."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.allocator.settings import Settings
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

T4 = lookup("T4")


def modules():
    """Every place that user code may look at."""
    cuda = torch.cuda
    found = [torch, torch._C, torch.Tensor, torch.UntypedStorage, torch.nn.Module, threading.Thread]
    found += [cuda, cuda.memory, cuda.graphs, cuda.streams, cuda.random, cuda.nvtx, cuda.amp]
    found += [torch.autograd, torch.amp, torch.backends.cudnn, torch.backends.cuda, torch.library]
    found += [torch.accelerator, torch.export, torch.Generator, torch.random, torch._C._nn]
    return found


def attributes():
    return {(place, name): value for place in modules() for name, value in vars(place).items()}


def changed(before, after):
    return sorted(
        f"{place.__name__}.{name}"
        for place, name in before.keys() | after.keys()
        if before.get((place, name)) is not after.get((place, name))
    )


def kernels():
    """What is registered for every operator at the keys that the virtual GPU uses."""
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    keys = ("AutogradCPU", "AutocastCPU")
    return {
        (name, key)
        for name in names
        for key in keys
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    }


def use():
    """Bring everything into play that is made on first use."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.LSTM(8, 8)).cuda()
    with torch.autocast("cuda"):
        net(torch.ones(2, 8, device="cuda"))[0].float().sum().backward()
    torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 4, 8).cuda()] * 3)
    torch.cuda.is_bf16_supported()
    torch.cuda.get_device_capability()


def test_everything_is_as_it_was(torch_modes):
    use_once = VirtualGPU(T4)
    with use_once:
        use()  # what torch itself imports and remembers on first use is there now
    before = attributes(), kernels(), torch_modes()
    with VirtualGPU(T4) as gpu:
        use()
        assert changed(before[0], attributes())
        assert torch_modes() != before[2]
    assert changed(before[0], attributes()) == []
    assert (kernels(), torch_modes()) == before[1:]
    assert not gpu.is_on


def test_the_host_computes_as_before():
    def draw():
        torch.manual_seed(7)
        x = torch.nn.functional.dropout(torch.ones(64), 0.5)
        q = torch.randn(1, 2, 8, 4)
        with torch.autocast("cpu"):
            product = torch.ones(3, 3) @ torch.ones(3, 3)
            norm = torch.ones(3, 3).softmax(-1)
        attention = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return x, attention, product, norm

    before = draw()
    with VirtualGPU(T4):
        use()
        inside = draw()
    for values in (inside, draw()):
        for value, expected in zip(values, before, strict=True):
            assert value.dtype is expected.dtype
            assert torch.equal(value, expected)


def test_what_was_on_the_card_is_on_the_host_afterwards():
    with VirtualGPU(T4) as gpu:
        x = torch.arange(3.0).cuda()
        assert x.is_cuda
    assert (x.device.type, (x + torch.ones(3)).tolist()) == ("cpu", [1, 2, 3])
    del x
    assert gpu.allocator.allocated == 0
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(3).to("cuda")


def test_enter_and_leave_bracket_cells():
    gpu = VirtualGPU(T4)
    gpu.switch_on()
    gpu.switch_on()  # twice is once
    gpu.enter()
    x = torch.ones(1000, device="cuda")
    gpu.leave()
    assert (x.is_cuda, gpu.allocator.allocated) == (True, 4096)
    gpu.enter()
    y = x + 1
    gpu.leave()
    assert (y.is_cuda, gpu.allocator.allocated) == (True, 8192)
    gpu.switch_off()
    gpu.switch_off()


class Open(TorchDispatchMode):
    """A mode that user code has left on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_modes_that_user_code_left_open_stay_open(torch_modes):
    gpu, mode = VirtualGPU(T4), Open()
    gpu.switch_on()
    gpu.enter()
    mode.__enter__()
    gpu.leave()
    assert torch_modes() == [mode]
    mode.__exit__(None, None, None)
    gpu.switch_off()
    assert torch_modes() == []


def test_a_failed_start_leaves_nothing(monkeypatch):
    before = attributes()
    gpu = VirtualGPU(T4)
    monkeypatch.setattr(gpu._kernels, "install", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gpu.switch_on()
    assert changed(before, attributes()) == []


def test_compiling_says_once_that_code_runs_eagerly(gpu):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        net = torch.compile(nn.Linear(3, 3).cuda())
        assert net(torch.ones(2, 3, device="cuda")).is_cuda

        @torch.compile(mode="max-autotune")
        def increased(x):
            return x + 1

        assert increased(torch.ones(1, device="cuda")).item() == 2
        nn.Linear(2, 2).compile()
    assert sum("eagerly" in str(warning.message) for warning in told) == 1


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:4")
    with VirtualGPU(T4):
        x = torch.zeros(1100 << 10, dtype=torch.uint8, device="cuda")
        assert (torch.cuda.memory_allocated(), x.nbytes) == (1280 << 10, 1100 << 10)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "no_such_setting:4")
    with pytest.raises(ValueError, match="no_such_setting"):
        VirtualGPU(T4)


def test_settings_are_read_when_the_device_is_first_used(monkeypatch):
    with VirtualGPU(T4):
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        assert torch.cuda.memory_reserved() == 0
        first = torch.zeros(15 << 20, dtype=torch.uint8, device="cuda")
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "no_such_setting:4")
        second = torch.zeros(15 << 20, dtype=torch.uint8, device="cuda")
        assert [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()] == [True]
        del first, second


def test_settings_set_by_the_program_stay(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.9")
    with VirtualGPU(T4) as gpu:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        torch.cuda.set_per_process_memory_fraction(0.001)
        x = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        assert [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()] == [True]
        assert gpu.allocator.settings.garbage_collection_threshold == 0
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(20 << 20, dtype=torch.uint8, device="cuda")
        del x


def test_expandable_segments_grow():
    with VirtualGPU(T4, Settings.parse("expandable_segments:True")):
        keep = [torch.zeros(15 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        (segment,) = torch.cuda.memory_snapshot()
        assert (segment["is_expandable"], segment["total_size"]) == (True, 60 << 20)
        del keep[1:]
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 20 << 20
