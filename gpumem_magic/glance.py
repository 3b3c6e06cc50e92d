"""A quick look at all devices while a cell runs, from whichever thread asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumem_magic.sources import Source
from gpumem_magic.sources.cuda.device import CUDA, DeviceReader, current_device, devices
from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Category, Device
from gpumem_magic.virtual.source import VirtualSource


@dataclass(frozen=True, slots=True)
class Glance:
    """One device at one moment. highest: what the allocator's own peak counter says, in bytes; the
    user may have reset it. kinds: bytes by category, as far as they are known before the end of the
    cell."""

    device: Device
    level: Level
    highest: int | None = None
    kinds: Mapping[Category, int] = field(default_factory=dict)


class Glancer:
    """Looks at the device of a source, and at this process's others of its kind. Close it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kind = source.kind if isinstance(source, CudaSource) else CUDA
        self._reader = DeviceReader(self._kind) if isinstance(source, CudaSource) else None

    def look(self) -> tuple[Glance, ...]:
        """Every device now; the one in use first."""
        source, reader = self._source, self._reader
        if reader is not None:
            return tuple(_real(reader, index) for index in _indices(self._kind))
        if isinstance(source, VirtualSource):
            return (Glance(source.device, source.level(), _highest(source), source.kinds()),)
        return (Glance(source.device, source.level()),)

    def highest(self) -> tuple[int | None, ...]:
        """The allocators' own peak counters alone, in the order of `look`; in microseconds."""
        if self._reader is not None:
            return tuple(self._reader.counters(index).peak for index in _indices(self._kind))
        return (_highest(self._source) if isinstance(self._source, VirtualSource) else None,)

    def close(self) -> None:
        """Let go of the driver."""
        if self._reader is not None:
            self._reader.close()


def _real(reader: DeviceReader, index: int) -> Glance:
    device = reader.describe(index)
    return Glance(device, reader.level(index), reader.counters(index).peak)


def _indices(kind: str) -> list[int]:
    first = current_device(kind)
    return [first, *(index for index in devices(kind) if index != first)]


def _highest(source: VirtualSource) -> int:
    counts = source.gpu.allocator.statistics.all  # only read: the cell's own thread writes them
    return max(counts.allocated, counts.allocated_peak)
