"""Where events come from: what every source of them can do, and the one that is in use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gpumem_magic.values.findings import Level, Trace
from gpumem_magic.values.recording import Cell, Device, Recording

if TYPE_CHECKING:
    from gpumem_magic.sources.device_memory import DeviceMemory


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
        """Addresses of the blocks on `device` that came with `cell`, when it was last recorded, or
        with a later recording, as far as that is still known."""

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


@functools.cache
def torch_release() -> tuple[int, int]:
    """The installed PyTorch's: (2, 13)."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
