"""What PyTorch tells of its accelerators beside CUDA, by version: their counters, their size.

torch.accelerator's counters came with torch 2.9 (MPS's later), torch.xpu's with 2.3; torch.mps has
its own two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpumem_magic.values.recording import Device, Reading

_NAMES = {"mps": "Apple GPU (MPS)"}

_UNIFIED = "the GPU shares the memory of the whole machine, and PyTorch tells its own part only"
_NO_DRIVER = "PyTorch does not tell what this process holds of the device beside its own cache"
_UNTOLD = "PyTorch does not tell it of this accelerator"


@dataclass(frozen=True, slots=True)
class Counters:
    """The allocator's own numbers in bytes; None for what this version of PyTorch does not count.

    peak: the highest `allocated` since the user last reset it.
    """

    allocated: int
    reserved: int | None = None
    peak: int | None = None


class Backend(Protocol):
    """One kind of device, as far as measuring needs it. kind: as in `torch.device`, "mps"."""

    kind: str

    @property
    def keeps_history(self) -> bool:
        """Whether its allocator records what it does, as CUDA's."""

    def current(self) -> int:
        """The index of the device that PyTorch would use now."""

    def counters(self, index: int) -> Counters:
        """Its allocator's counters; in microseconds."""

    def read(self, index: int) -> Reading:
        """All that can be known at this moment, and why the rest is not."""

    def describe(self, index: int) -> Device:
        """Its name and size; 0 bytes where PyTorch does not tell."""


class TorchBackend:
    """An accelerator of this machine, asked by way of torch."""

    def __init__(self, kind: str) -> None:
        import torch

        self.kind = kind
        self._torch: Any = torch
        self._module: Any = getattr(torch, kind)

    @property
    def keeps_history(self) -> bool:
        """Whether its allocator records what it does, as CUDA's: XPU's does since torch 2.11."""
        return hasattr(self._torch._C, f"_{self.kind}_recordMemoryHistory")

    def current(self) -> int:
        """The index of the current device; there is one MPS device."""
        return int(self._module.current_device()) if self.kind != "mps" else 0

    def counters(self, index: int) -> Counters:
        """What the allocator counts."""
        stats = self._statistics(index)
        if stats is None:
            return Counters(int(self._module.current_allocated_memory()))
        allocated = stats["allocated_bytes"]["all"]
        return Counters(
            allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]
        )

    def read(self, index: int) -> Reading:
        """Counters, and what the driver tells."""
        counters = self.counters(index)
        unknown = {}
        if counters.reserved is None:
            unknown["reserved"] = f"this PyTorch does not count it for {self.kind.upper()}"
        ours = self._process_used()
        if ours is None:
            unknown["process_used"] = _NO_DRIVER
        used = self._device_used(index)
        if used is None:
            unknown["device_used"] = _UNIFIED if self.kind == "mps" else _UNTOLD
        return Reading(counters.allocated, counters.reserved, used, ours, unknown)

    def describe(self, index: int) -> Device:
        """Name and size; of MPS what Metal recommends to stay below."""
        name, total = _NAMES.get(self.kind, self.kind.upper()), 0
        if self.kind == "mps":
            total = int(getattr(self._module, "recommended_max_memory", int)())
        elif hasattr(self._module, "get_device_properties"):
            found = self._module.get_device_properties(index)
            name, total = str(found.name), int(found.total_memory)
        return Device(name, index, total, (0, 0), virtual=False)

    def _statistics(self, index: int) -> Mapping[str, Any] | None:
        """The allocator's statistics; None where this version has none for this accelerator."""
        compiled = self._torch._C
        for name in ("_accelerator_getDeviceStats", f"_{self.kind}_memoryStats"):
            try:
                found: Mapping[str, Any] = getattr(compiled, name)(index)
            except (AttributeError, RuntimeError):  # RuntimeError: no DeviceAllocator
                continue
            return found
        return None

    def _process_used(self) -> int | None:
        ask = getattr(self._module, "driver_allocated_memory", None)
        return None if ask is None else int(ask())

    def _device_used(self, index: int) -> int | None:
        ask = getattr(self._module, "mem_get_info", None)
        try:
            free, total = ask(index) if ask is not None else (None, None)
        except RuntimeError:  # some drivers of integrated GPUs do not tell
            return None
        return None if free is None else int(total - free)


def find_backend() -> TorchBackend | None:
    """The accelerator of this machine, if there is one and it is no CUDA device."""
    import torch

    if torch.backends.mps.is_available():
        return TorchBackend("mps")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return TorchBackend("xpu")
    return None
