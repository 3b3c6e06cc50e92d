"""NVML, which `pynvml` and what stands on it read the driver by: it answers for the card."""

from __future__ import annotations

from typing import Any

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.virtual.libraries.native import NoLibrary
from gpumem_magic.virtual.source import VirtualSource


def answer_for_card(arrivals: Arrivals, source: VirtualSource) -> None:
    """Put it in the place of the driver's own library; in a process that ends with the dry run."""

    def replace(pynvml: Any) -> None:
        pynvml.nvmlLib = _OneCard(source)
        pynvml._nvmlGetFunctionPointer_cache.clear()

    arrivals.expect("pynvml", replace)


class _OneCard(NoLibrary):
    """A driver with one card that does nothing: its load, clocks and power are 0."""

    def __init__(self, source: VirtualSource) -> None:
        self._source = source

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802 - NVML's names
        count._obj.value = 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: Any) -> int:  # noqa: N802
        name.value = self._source.device.name.encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        driver, told = self._source.gpu.allocator.driver, memory._obj
        told.total, told.free, told.used = driver.total, driver.free, driver.total - driver.free
        return 0

    nvmlDeviceGetMemoryInfo_v2 = nvmlDeviceGetMemoryInfo  # noqa: N815
