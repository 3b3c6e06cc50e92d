"""What the driver says of a device, through NVML (nvidia-ml-py); where it does not say, why not.

Works without torch, CUDA and a driver: then everything is unknown, with the reason."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpumem_magic.values.inventory import Process

UNIFIED = (
    "the driver does not report memory of its own for this device (it shares the host's memory)"
)

NO_SHARES = "the driver does not report memory per process (Windows and WSL do not)"

FOREIGN_IDS = (
    "the driver does not list this process: inside a container it knows processes by other ids"
)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Bytes of a device at one moment. A field that is None has its reason in `unknown[field]`.

    total: whole memory, with what the driver keeps for itself. used: as nvidia-smi shows it.
    this_process: our share, context included. capability: CUDA compute capability.
    """

    name: str | None = None
    capability: tuple[int, int] | None = None
    total: int | None = None
    used: int | None = None
    processes: tuple[Process, ...] = ()
    this_process: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


class Driver:
    """A connection to the driver, opened when first needed, closed by `close`. It never raises."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._failure: str | None = None
        self._handles: dict[str | int, Any] = {}

    def read_device(self, which: str | int) -> DeviceUse:
        """The device with this UUID (with or without its "GPU-" or "MIG-") or NVML index."""
        failure = self._open()
        if failure is not None:
            return unknown_device(failure)
        try:
            handle = self._handle(which)
        except self._nvml.NVMLError as error:
            return unknown_device(f"the driver does not know device {which} ({error})")
        return self._read(handle)

    def close(self) -> None:
        """Shut NVML down, if it was opened; a later reading opens it again."""
        nvml, self._nvml, self._failure = self._nvml, None, None
        self._handles.clear()
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return  # the driver has gone: there is nothing left to shut down

    def resolve_visible(self, index: int) -> str | int | None:
        """The UUID or NVML index of CUDA's device `index` before CUDA runs.

        None where only CUDA can tell.
        """
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            entry = str(index)
        else:
            entries = [part.strip() for part in visible.split(",")]
            entry = entries[index] if index < len(entries) else ""
        if not entry.isdigit():
            return entry or None
        # CUDA numbers the fastest device first, NVML follows the PCI bus
        by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return int(entry) if by_bus or self._alike() else None

    def _open(self) -> str | None:
        """None when NVML is ready, otherwise the reason why not."""
        if self._nvml is not None or self._failure is not None:
            return self._failure
        try:
            pynvml = importlib.import_module("pynvml")  # of nvidia-ml-py, which has no types
        except ImportError:
            self._failure = "the driver was not asked: nvidia-ml-py is not installed"
            return self._failure
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._failure = f"the NVIDIA driver does not answer ({error})"
            return self._failure
        self._nvml = pynvml
        return None

    def _handle(self, which: str | int) -> Any:
        if which not in self._handles:
            self._handles[which] = self._find(which)
        return self._handles[which]

    def _find(self, which: str | int) -> Any:
        nvml = self._nvml
        if isinstance(which, int):
            return nvml.nvmlDeviceGetHandleByIndex(which)
        bare = which.removeprefix("GPU-").removeprefix("MIG-")
        for name in dict.fromkeys((which, f"GPU-{bare}", f"MIG-{bare}")):
            with suppress(nvml.NVMLError):
                return nvml.nvmlDeviceGetHandleByUUID(name)
        return self._find_by_prefix(which)

    def _find_by_prefix(self, which: str) -> Any:
        """CUDA_VISIBLE_DEVICES may hold the beginning of a UUID, as long as it is unique."""
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        fits = [
            handle for handle in handles if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(which)
        ]
        if len(fits) == 1:
            return fits[0]
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)

    def _alike(self) -> bool:
        """Whether all devices are of one model, so that both orders are the same."""
        if self._open() is not None:
            return False
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            return len({_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}) <= 1
        except nvml.NVMLError:
            return False

    def _read(self, handle: Any) -> DeviceUse:
        unknown: dict[str, str] = {}
        total, used = self._memory(handle, unknown)
        processes = self._processes(handle, unknown)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle, "capability", unknown)
        name = self._ask("nvmlDeviceGetName", handle, "name", unknown)
        return DeviceUse(
            name=None if name is None else _text(name),
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            total=total,
            used=used,
            processes=processes or (),
            this_process=_own_share(processes, unknown),
            unknown=unknown,
        )

    def _ask(self, function: str, handle: Any, what: str, unknown: dict[str, str]) -> Any:
        try:
            return getattr(self._nvml, function)(handle)
        except self._nvml.NVMLError as error:
            unknown[what] = f"the driver does not tell ({error})"
            return None

    def _memory(self, handle: Any, unknown: dict[str, str]) -> tuple[int | None, int | None]:
        if self._is_split(handle):
            unknown["used"] = (
                "the device is split into MIG instances, and which one is ours is not known"
            )
            unknown["total"] = unknown["used"]
            return None, None
        nvml = self._nvml
        try:
            memory = self._memory_info(handle)
        except nvml.NVMLError as error:
            unsupported = isinstance(error, nvml.NVMLError_NotSupported)
            reason = UNIFIED if unsupported else f"the driver does not tell ({error})"
            unknown["used"] = unknown["total"] = reason
            return None, None
        return _known(memory.total, "total", unknown), _known(memory.used, "used", unknown)

    def _memory_info(self, handle: Any) -> Any:
        nvml = self._nvml
        try:
            # the second version leaves the driver's own reserve out of `used`, as nvidia-smi does
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except (AttributeError, TypeError, nvml.NVMLError):
            return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _is_split(self, handle: Any) -> bool:
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceIsMigDeviceHandle(handle):
                return False
            return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
        except (AttributeError, nvml.NVMLError):
            return False

    def _processes(self, handle: Any, unknown: dict[str, str]) -> tuple[Process, ...] | None:
        nvml = self._nvml
        found: dict[int, Process] = {}
        try:
            for kind in ("Compute", "Graphics"):
                for entry in getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle):
                    name = self._process_name(entry.pid)
                    found.setdefault(entry.pid, Process(entry.pid, name, entry.usedGpuMemory))
        except nvml.NVMLError as error:
            unknown["processes"] = f"the driver does not list processes ({error})"
            return tuple(found.values()) or None
        return tuple(found.values())

    def _process_name(self, pid: int) -> str:
        try:
            return _text(self._nvml.nvmlSystemGetProcessName(pid))
        except (AttributeError, UnicodeError, self._nvml.NVMLError):
            return ""


def read_device(which: str | int) -> DeviceUse:
    """What the driver says of one device now, by UUID or NVML index. Opens and closes NVML."""
    driver = Driver()
    try:
        return driver.read_device(which)
    finally:
        driver.close()


def unknown_device(reason: str) -> DeviceUse:
    """A device of which nothing is known, because `reason`."""
    fields = ("name", "capability", "total", "used", "processes", "this_process")
    return DeviceUse(unknown=dict.fromkeys(fields, reason))


def _own_share(processes: Sequence[Process] | None, unknown: dict[str, str]) -> int | None:
    if processes is None:
        unknown["this_process"] = unknown["processes"]
        return None
    for process in processes:
        if process.pid == os.getpid():
            if process.used is None:
                unknown["this_process"] = NO_SHARES
            return process.used
    unknown["this_process"] = FOREIGN_IDS
    return None


def _known(size: object, what: str, unknown: dict[str, str]) -> int | None:
    if isinstance(size, int):
        return size
    unknown[what] = "the driver answers N/A"
    return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
