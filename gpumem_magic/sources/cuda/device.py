"""Readings of a CUDA device: PyTorch's counters, what CUDA says of it, what its driver adds.

Nothing here initialises CUDA or makes a context: looking must not cost memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

from gpumem_magic.sources.cuda import nvml
from gpumem_magic.values.findings import Level
from gpumem_magic.values.inventory import Process
from gpumem_magic.values.recording import Device, IdleDevice, Machine, Neighbour, Reading


@dataclass(frozen=True, slots=True)
class Counters:
    """The allocator's own numbers for one device.

    changes: allocations, frees and failures so far. peak: the highest `allocated` since the user
    last reset it.
    """

    allocated: int
    reserved: int
    changes: int
    retries: int
    peak: int


_IDLE = 0.1
"""Share of a device that may be in use where nobody works on it: a context, a display."""

NOTHING = Counters(0, 0, 0, 0, 0)
"""What every device has before CUDA is initialised."""


class DeviceReader:
    """Reads any device of this process. Close it to let go of the driver."""

    def __init__(self) -> None:
        self._driver = nvml.Driver()
        self._ids: dict[int, str] = {}

    def close(self) -> None:
        """Let go of the driver; a later reading connects again."""
        self._driver.close()

    def counters(self, device: int) -> Counters:
        """PyTorch's counters now; zeros before CUDA is initialised."""
        return read_counters(device) if is_initialized() else NOTHING

    def level(self, device: int) -> Level:
        """Allocated, reserved and device-wide use now, cheaply."""
        counters = self.counters(device)
        used = _used_by_cuda(device)
        if used is None:
            used = self._ask_driver(device).used
        return Level(counters.allocated, counters.reserved, used)

    def read(self, device: int, counters: Counters) -> Reading:
        """All that can be known of a device at this moment, around the given counters."""
        driver = self._ask_driver(device)
        unknown = {}
        used = _used_by_cuda(device)
        if used is None:
            used = driver.used
            if used is None:
                unknown["device_used"] = driver.unknown["used"]
        ours = driver.this_process
        if ours is None and not _has_context(device):
            ours = 0
        if ours is None:
            unknown["process_used"] = driver.unknown["this_process"]
        return Reading(counters.allocated, counters.reserved, used, ours, unknown)

    def processes(self, device: int) -> tuple[Process, ...]:
        """The processes on the device that the driver lists, this one included."""
        return self._ask_driver(device).processes

    def machine(self, device: int, failed: bool) -> Machine:
        """The other processes on a device, asked for only where memory ran out on it, and the other
        devices that PyTorch sees and nobody uses."""
        listed = self.processes(device) if failed else ()
        neighbours = (Neighbour(p.pid, p.name, p.used) for p in listed if p.pid != os.getpid())
        idle = (self._idle(other) for other in devices() if other != device)
        return Machine(tuple(neighbours), tuple(one for one in idle if one is not None))

    def _idle(self, device: int) -> IdleDevice | None:
        found = self._ask_driver(device)
        if found.total is None or found.used is None or self.counters(device).reserved:
            return None
        if found.used > _IDLE * found.total:
            return None
        return IdleDevice(device, found.name or f"CUDA device {device}", found.total, found.used)

    def describe(self, device: int) -> Device:
        """Name, size and capability; from the driver while CUDA is not initialised."""
        import torch

        if is_initialized():
            found = torch.cuda.get_device_properties(device)
            capability = (int(found.major), int(found.minor))
            return Device(found.name, device, int(found.total_memory), capability, virtual=False)
        driver = self._ask_driver(device)
        name = driver.name or f"CUDA device {device}"
        return Device(name, device, driver.total or 0, driver.capability or (0, 0), virtual=False)

    def _ask_driver(self, device: int) -> nvml.DeviceUse:
        which = self._identify(device)
        if which is None:
            return nvml.unknown_device(
                "which of the driver's devices is ours is not known until CUDA is initialised"
            )
        return self._driver.read_device(which)

    def _identify(self, device: int) -> str | int | None:
        """The device's UUID, which alone means the same to CUDA and to the driver."""
        import torch

        if device in self._ids:
            return self._ids[device]
        if is_initialized():
            uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
            if uuid is not None:
                self._ids[device] = str(uuid)
                return self._ids[device]
        return self._driver.resolve_visible(device)


def is_initialized() -> bool:
    """Whether PyTorch has initialised CUDA in this process."""
    import torch

    cuda: Any = torch.cuda
    return bool(cuda.is_initialized())


def is_in_use() -> bool:
    """Whether this process uses a real CUDA device, also while a virtual one answers for it."""
    import torch

    return torch.backends.cuda.is_built() and is_initialized() and cuda_devices() > 0


def current_device() -> int:
    """The device that PyTorch would use now; 0 before CUDA is initialised."""
    import torch

    return torch.cuda.current_device() if is_initialized() else 0


def devices() -> range:
    """The devices whose allocators exist; none before CUDA is initialised."""
    import torch

    return range(torch.cuda.device_count() if is_initialized() else 0)


def read_counters(device: int) -> Counters:
    """PyTorch's counters for a device. Its allocator must exist, its context need not."""
    import torch

    stats = torch._C._cuda_memoryStats(device)
    changes = stats["allocation"]["all"]
    return Counters(
        stats["allocated_bytes"]["all"]["current"],
        stats["reserved_bytes"]["all"]["current"],
        changes["allocated"] + changes["freed"] + stats["num_ooms"],
        stats["num_alloc_retries"],
        stats["allocated_bytes"]["all"]["peak"],
    )


def _has_context(device: int) -> bool:
    import torch

    compiled: Any = torch._C
    return is_initialized() and bool(compiled._cuda_hasPrimaryContext(device))


def _used_by_cuda(device: int) -> int | None:
    """Bytes in use on the whole device; None where asking CUDA would make a context, or fails."""
    import torch

    if not _has_context(device):
        return None
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # a device in an error state refuses; the driver still answers
        return None
    return total - free


def cuda_devices() -> int:
    """How many real CUDA or ROCm devices there are, also while a virtual one is on."""
    import torch

    if not torch.backends.cuda.is_built():
        return 0
    count = torch._C._cuda_getDeviceCount
    if isinstance(count, BuiltinFunctionType):
        return int(count())
    # The virtual device answers in its place. The driver's library tells, -1 where there is none.
    ask = torch.cuda._device_count_amdsmi if torch.version.hip else torch.cuda._device_count_nvml
    return max(0, ask())
