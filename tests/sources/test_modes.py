"""Modes that user code leaves open over cells stay its own to end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import overrides  # noqa: E402
from torch.utils import _python_dispatch as dispatch  # noqa: E402

from gpumem_magic.virtual.catalog import lookup  # noqa: E402
from gpumem_magic.virtual.gpu import VirtualGPU  # noqa: E402


class Functions(overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Operators(dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def stacks():
    return (
        overrides._get_current_function_mode_stack(),
        dispatch._get_current_dispatch_mode_stack(),
    )


@pytest.mark.parametrize("kind", [Functions, Operators])
def test_a_mode_left_open_in_one_cell_is_ended_in_the_next(kind):
    mode, gpu = kind(), VirtualGPU(lookup("T4"))
    gpu.switch_on()
    try:
        gpu.enter()
        mode.__enter__()
        gpu.leave()
        # WHEN the next cell ends it
        gpu.enter()
        mode.__exit__(None, None, None)
        # THEN ours is still there, and nothing stays behind the cell
        assert torch.ones(3, device="cuda").is_cuda
        gpu.leave()
        assert stacks() == ([], [])
    finally:
        gpu.switch_off()


def test_the_default_device_stays_below():
    gpu = VirtualGPU(lookup("T4"))
    gpu.switch_on()
    try:
        torch.set_default_device("cpu")
        gpu.enter()
        assert torch.ones(3).device.type == "cpu"
        assert torch.ones(3, device="cuda").is_cuda
        torch.set_default_device(None)
        gpu.leave()
        assert stacks() == ([], [])
    finally:
        torch.set_default_device(None)
        gpu.switch_off()
