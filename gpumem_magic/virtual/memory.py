"""The memory of a virtual card, for an inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpumem_magic.sources.device_memory import DeviceMemory, free_memory, used_blocks
from gpumem_magic.sources.objects.allocation_sites import AllocationSite
from gpumem_magic.values.recording import Category, Device, Reading

if TYPE_CHECKING:
    from gpumem_magic.virtual.gpu import VirtualGPU

_CATEGORIES = tuple(Category)


def virtual_memory(
    gpu: VirtualGPU,
    device: Device,
    reading: Reading,
    told: Mapping[int, int],
    sites: Mapping[int, AllocationSite],
    stepped: bool | None,
) -> DeviceMemory:
    """What the card's allocator holds. told: categories by their place in Category, by address."""
    segments = tuple(gpu.allocator.snapshot())
    blocks, requested = used_blocks(segments)
    return DeviceMemory(
        device=device,
        reading=reading,
        segments=segments,
        blocks=blocks,
        requested=requested,
        free=free_memory(segments),
        locate=gpu.storages.locate,
        locate_storage=lambda storage: _located(gpu, storage),
        aside=gpu.tracker.suspended,
        told={address: _CATEGORIES[code] for address, code in told.items() if code >= 0},
        sites=sites,
        libraries={a: library for (library, _, _), a in gpu.scratch.held.items() if a},
        stepped=stepped,
    )


def _located(gpu: VirtualGPU, storage: Any) -> int | None:
    return gpu.storages.addresses.get(storage._cdata) or None
