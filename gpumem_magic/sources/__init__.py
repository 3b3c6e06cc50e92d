"""Where events come from; the only room that knows torch. `choose_source` picks the device."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Protocol

from gpumem_magic.events import Cell, Device, Recording
from gpumem_magic.trace.findings import Level, Trace

if TYPE_CHECKING:
    from gpumem_magic.sources.holders.device_memory import DeviceMemory

DEFAULT_MODEL = "T4"  # the card of free notebook services, so the one that most people know


class Source(Protocol):
    """One way to learn of a device's memory events. `start` and `stop` bracket one cell."""

    @property
    def device(self) -> Device:
        """The device that `level` speaks of (the current one, where the source sees several)."""

    def enter(self) -> None:
        """Called before every cell, measured or not (the virtual GPU enters its modes here)."""

    def leave(self) -> None:
        """Called after every cell, measured or not."""

    def level(self) -> Level:
        """What is allocated, reserved and used right now; cheap enough for a live display."""

    def start(self, namespaces: Callable[[], Mapping[str, Any]]) -> None:
        """Begin recording; `namespaces()` gives the names that may own tensors, whenever asked."""

    def stop(
        self, cell: Cell, cells: Mapping[str, Cell], error: BaseException | None
    ) -> tuple[Recording, ...]:
        """End recording; one Recording per device that the cell used, the most used first."""

    def remember(self, recording: Recording, trace: Trace) -> None:
        """Keep what `trace` tells of the blocks that outlive `recording`, for the next one."""

    def born_in(self, cell: Cell) -> frozenset[int]:
        """Addresses of the blocks that `cell` left on `device`, if it was the last one recorded and
        that is still known."""

    def memory(self) -> DeviceMemory:
        """What the allocator of `device` holds now, block by block."""

    def close(self) -> None:
        """Restore everything that the source replaced."""


@dataclass(frozen=True, slots=True)
class Active:
    """The source that acts on the code running now, and whether it records that code."""

    source: Source
    recording: bool


ACTIVE: ContextVar[Active | None] = ContextVar("gpumem_magic.active", default=None)
"""Set around code that runs on a source, so that a measurement inside it finds that source."""


def choose_source(name: str = "auto") -> Source | None:
    """The source for a device's name: auto, cuda, cuda:1, a card ("T4"), a size ("24GiB") or off.

    auto: the CUDA or ROCm devices of this machine; without any, a virtual Tesla T4; None where
    another accelerator (MPS, XPU) is, as code there would silently move from it. off: None.
    Raises ValueError for a wrong name, ModuleNotFoundError without torch.
    """
    name = resolve_device(name)
    if name == "off":
        return None
    if _is_cuda(name):
        from gpumem_magic.sources.cuda import CudaSource

        return CudaSource(int(name[5:]) if ":" in name else None)
    from gpumem_magic.sources.virtual.catalog import lookup
    from gpumem_magic.sources.virtual.source import VirtualSource

    return VirtualSource(lookup(name))


def resolve_device(name: str) -> str:
    """What `name` comes to here: auto as another name, a card by its own key. Raises as above."""
    check_device(name)
    if name == "auto":
        if other_accelerator():
            return "off"
        return "cuda" if cuda_devices() else DEFAULT_MODEL
    if name == "off" or _is_cuda(name):
        return name
    from gpumem_magic.sources.virtual.catalog import lookup

    return lookup(name).key


def check_device(name: str) -> None:
    """Raise ValueError, listing the right names, if `name` is no device of this machine."""
    _require_torch()
    if name in ("auto", "off"):
        return
    if not _is_cuda(name):
        from gpumem_magic.sources.virtual.catalog import lookup

        try:
            lookup(name)
        except ValueError as error:
            others = ", ".join(("auto", "off", *_devices_here()))
            raise ValueError(f"{error}; or {others}") from None
    elif (int(name[5:]) if ":" in name else 0) >= cuda_devices():
        here = ", ".join(_devices_here()) or "no CUDA device"
        raise ValueError(f"{name} is not here: this machine has {here}; a virtual one is T4, ...")


def device_names() -> tuple[str, ...]:
    """Every name to offer: auto and off, this machine's CUDA devices, the cards of the catalog."""
    from gpumem_magic.sources.virtual.catalog import MODELS

    return ("auto", "off", *_devices_here(), *(model.key for model in MODELS))


def _devices_here() -> tuple[str, ...]:
    return tuple(f"cuda:{index}" for index in range(cuda_devices()))


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


def other_accelerator() -> str | None:
    """ "MPS" or "XPU" where PyTorch has such an accelerator."""
    import torch

    if torch.backends.mps.is_available():
        return "MPS"
    return "XPU" if hasattr(torch, "xpu") and torch.xpu.is_available() else None


def _is_cuda(name: str) -> bool:
    return re.fullmatch(r"cuda(:\d+)?", name) is not None


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(
            "PyTorch is not installed here: install torch, then %reload_ext gpumem_magic"
        )
