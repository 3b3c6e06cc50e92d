"""Readings of a CUDA device: PyTorch's counters, what CUDA says of it, what its driver adds; and of
XPU devices, for which `torch.xpu` answers alike. Nothing here initialises either or makes a
context: looking must not cost memory."""

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

    changes: allocations, frees and failures so far. peak, reserved_peak: the highest `allocated`
    and `reserved` since the user last reset them.
    """

    allocated: int
    reserved: int
    changes: int
    retries: int
    peak: int
    reserved_peak: int = 0


CUDA, XPU = "cuda", "xpu"
"""The kinds of devices whose allocators keep a history, as in `torch.device`."""

_IDLE = 0.1
"""Share of a device that may be in use where nobody works on it: a context, a display."""

NOTHING = Counters(0, 0, 0, 0, 0)
"""What every device has before CUDA is initialised."""


class DeviceReader:
    """Reads any device of this process, of one kind. Close it to let go of the driver."""

    def __init__(self, kind: str = CUDA) -> None:
        self._kind = kind
        self._driver = nvml.Driver()
        self._ids: dict[int, str] = {}

    def close(self) -> None:
        """Let go of the driver; a later reading connects again."""
        self._driver.close()

    def counters(self, device: int) -> Counters:
        """PyTorch's counters now; zeros before CUDA is initialised."""
        return read_counters(device, self._kind) if is_initialized(self._kind) else NOTHING

    def level(self, device: int) -> Level:
        """Allocated, reserved and device-wide use now, cheaply."""
        counters = self.counters(device)
        used = _used_by_all(device, self._kind)
        if used is None:
            used = self._ask_driver(device).used
        return Level(counters.allocated, counters.reserved, used)

    def read(self, device: int, counters: Counters) -> Reading:
        """All that can be known of a device at this moment, around the given counters."""
        driver = self._ask_driver(device)
        unknown = {}
        used = _used_by_all(device, self._kind)
        if used is None:
            used = driver.used
            if used is None:
                unknown["device_used"] = driver.unknown["used"]
        ours = driver.this_process
        if ours is None and not _has_context(device, self._kind):
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
        idle = (self._idle(other) for other in devices(self._kind) if other != device)
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
        if is_initialized(self._kind):
            found = namespace(self._kind).get_device_properties(device)
            capability = int(getattr(found, "major", 0)), int(getattr(found, "minor", 0))
            return Device(found.name, device, int(found.total_memory), capability, virtual=False)
        driver = self._ask_driver(device)
        name = driver.name or f"{self._kind.upper()} device {device}"
        return Device(name, device, driver.total or 0, driver.capability or (0, 0), virtual=False)

    def _ask_driver(self, device: int) -> nvml.DeviceUse:
        if self._kind != CUDA:
            return nvml.unknown_device("the driver of such a device is not asked")
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


def namespace(kind: str = CUDA) -> Any:
    """`torch.cuda` or `torch.xpu`."""
    import torch

    return getattr(torch, kind)


def is_initialized(kind: str = CUDA) -> bool:
    """Whether PyTorch has initialised such devices in this process."""
    return bool(namespace(kind).is_initialized())


def is_in_use() -> bool:
    """Whether this process uses a real CUDA device, also while a virtual one answers for it."""
    import torch

    return torch.backends.cuda.is_built() and is_initialized() and cuda_devices() > 0


def current_device(kind: str = CUDA) -> int:
    """The device that PyTorch would use now; 0 before such devices are initialised."""
    return int(namespace(kind).current_device()) if is_initialized(kind) else 0


def devices(kind: str = CUDA) -> range:
    """The devices whose allocators exist; none before they are initialised."""
    return range(namespace(kind).device_count() if is_initialized(kind) else 0)


def read_counters(device: int, kind: str = CUDA) -> Counters:
    """PyTorch's counters for a device. Its allocator must exist, its context need not."""
    import torch

    stats = getattr(torch._C, f"_{kind}_memoryStats")(device)
    changes = stats["allocation"]["all"]
    return Counters(
        stats["allocated_bytes"]["all"]["current"],
        stats["reserved_bytes"]["all"]["current"],
        changes["allocated"] + changes["freed"] + stats["num_ooms"],
        stats["num_alloc_retries"],
        stats["allocated_bytes"]["all"]["peak"],
        stats["reserved_bytes"]["all"]["peak"],
    )


def _has_context(device: int, kind: str) -> bool:
    import torch

    ask = getattr(torch._C, f"_{kind}_hasPrimaryContext", None)
    return is_initialized(kind) and (ask is None or bool(ask(device)))


def _used_by_all(device: int, kind: str) -> int | None:
    """Bytes in use on the whole device; None where asking would make a context, or fails."""
    if not _has_context(device, kind):
        return None
    try:
        free, total = namespace(kind).mem_get_info(device)
    except (RuntimeError, AttributeError):  # a device in an error state; torch.xpu before 2.6
        return None
    return int(total - free)


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
