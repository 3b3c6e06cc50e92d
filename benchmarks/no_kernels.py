"""Inductor where nothing can launch a kernel of Triton: it plans for the stub device as for a card,
and its wrappers allocate and free in their order. Only for a process that ends with its cell."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from triton.backends.compiler import GPUTarget


class _Driver:
    """What inductor asks Triton's driver: the device. Everything else is 0."""

    def get_current_target(self) -> GPUTarget:
        major, minor = torch.cuda.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: 0


class _Kernel:
    """A kernel that does nothing."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch it."""


def plan_without_kernels() -> None:
    """Leave out the kernels of what is compiled from here on, and choices among them by time."""
    config.compile_threads, config.force_disable_caches = 1, True
    config.max_autotune_gemm_backends = config.max_autotune_conv_backends = "ATEN"
    triton.runtime.driver.set_active(_Driver())
    AsyncCompile.triton = functools.partialmethod(lambda self, *code, **options: _Kernel())
