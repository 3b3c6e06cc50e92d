"""What an allocator holds at one moment, and what is known of each of its blocks, the same for a
real device and a virtual one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumem_magic.allocator.snapshot import Segment
from gpumem_magic.sources.objects.allocation_sites import AllocationSite
from gpumem_magic.values.inventory import FreeMemory, Process
from gpumem_magic.values.recording import LARGE_SEGMENT, Category, Device, Reading

if TYPE_CHECKING:
    import torch

SMALL_PIECE = 1 << 20
"""kSmallSize of c10/cuda/CUDACachingAllocator.cpp: requests above it never look below it."""

_PAGES = {"small": 2 << 20, "large": LARGE_SEGMENT}  # kSmallBuffer, kLargeBuffer: expandable pages


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device's memory, in bytes.

    blocks: the size of each block that is in use, by its address. requested: what was asked for, by
    address. locate(tensor): the address of a tensor's block. locate_storage: the same of a storage.
    aside: within, what torch does leaves no trace on the device. told, sites: what earlier
    recordings know of the blocks, by address. libraries: blocks known to be a library's. stepped:
    whether an optimizer's step was the last that used gradients; None: not known. unlisted: why the
    allocator's blocks are not known, and `blocks` are the storages that were located so far.
    """

    device: Device
    reading: Reading
    segments: tuple[Segment, ...]
    blocks: Mapping[int, int]
    requested: Mapping[int, int]
    free: FreeMemory
    locate: Callable[[torch.Tensor], int | None]
    locate_storage: Callable[[Any], int | None]
    processes: tuple[Process, ...] = ()
    aside: Callable[[], AbstractContextManager[None]] = nullcontext
    told: Mapping[int, Category] = field(default_factory=dict)
    sites: Mapping[int, AllocationSite] = field(default_factory=dict)
    libraries: Mapping[int, str] = field(default_factory=dict)
    stepped: bool | None = None
    unlisted: str = ""


def used_blocks(segments: Iterable[Segment]) -> tuple[dict[int, int], dict[int, int]]:
    """Sizes, and requested sizes, of the blocks that `allocated` counts, by address."""
    used = [b for s in segments for b in s.blocks if b.allocated]
    return {b.address: b.size for b in used}, {b.address: b.requested for b in used}


def free_memory(segments: Iterable[Segment]) -> FreeMemory:
    """What no tensor uses of the segments."""
    segments = tuple(segments)
    blocks = [block for segment in segments for block in segment.blocks]
    free = [block.size for block in blocks if not block.used]
    waiting = sum(block.size for block in blocks if block.used and not block.allocated)
    return FreeMemory(
        size=sum(free) + waiting,
        in_small_pieces=sum(size for size in free if size < SMALL_PIECE),
        largest=max(free, default=0),
        returnable=sum(map(_returnable, segments)),
        waiting=waiting,
    )


def _returnable(segment: Segment) -> int:
    """What `empty_cache()` gives back of a segment: all or nothing, or an expandable one's wholly
    free pages. What waits for a stream is free by then."""
    if not segment.expandable:
        in_use = any(block.allocated for block in segment.blocks)
        return 0 if in_use else segment.size
    page = _PAGES[segment.pool]
    return sum(
        max(0, end // page * page - -(-start // page) * page)
        for start, end in _free_stretches(segment)
    )


def _free_stretches(segment: Segment) -> list[tuple[int, int]]:
    """Neighbouring blocks that are free or will be, as offsets in the segment."""
    found: list[tuple[int, int]] = []
    for block in segment.blocks:
        if block.allocated:
            continue
        start = block.address - segment.address
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, block.address - segment.address + block.size))
    return found
