"""What tells of the driver, NVML for `pynvml` and what stands on it, and `nvidia-smi`, answers for
the card."""

from __future__ import annotations

import os
from typing import Any

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.units import MIB
from gpumem_magic.virtual.libraries.native import NoLibrary
from gpumem_magic.virtual.source import VirtualSource

_UNKNOWN = "[N/A]"


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


def nvidia_smi(source: VirtualSource, words: list[str]) -> str:
    """What the program prints with these options, as far as they ask for lists: of cards (`-L`,
    `--query-gpu=...`) or of processes (`--query-compute-apps=...`) as CSV."""
    options = dict(word.partition("=")[::2] for word in words)
    driver, name = source.gpu.allocator.driver, source.device.name
    if "-L" in options or "--list-gpus" in options:
        return f"GPU 0: {name} (UUID: {_UNKNOWN})\n"
    used = driver.total - driver.free
    told = {
        **dict.fromkeys(("index", "utilization.gpu", "utilization.memory"), 0),
        **dict.fromkeys(("name", "gpu_name"), name),
        **{"count": 1, "pid": os.getpid(), "process_name": "python"},
        **{"memory.total": driver.total // MIB, "memory.free": driver.free // MIB},
        **dict.fromkeys(("memory.used", "used_memory", "used_gpu_memory"), used // MIB),
    }
    asked = options.get("--query-gpu") or options.get("--query-compute-apps")
    if not asked:
        return ""
    form, fields = options.get("--format", "").split(","), asked.replace(" ", "").split(",")
    units = {one: "" if "nounits" in form else _unit(one) for one in fields}
    values = [f"{told[one]}{units[one]}" if one in told else _UNKNOWN for one in fields]
    heads = [f"{one} [{units[one].strip()}]" if units[one] else one for one in fields]
    rows = [values] if "noheader" in form else [heads, values]
    return "".join(f"{', '.join(row)}\n" for row in rows)


def _unit(field: str) -> str:
    """Of the numbers of a field."""
    return " MiB" if "memory" in field and "util" not in field else " %" if "util" in field else ""
