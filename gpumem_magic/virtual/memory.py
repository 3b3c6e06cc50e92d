"""The memory of a virtual card: for an inventory, and by kind while a cell runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpumem_magic.sources.cuda.memory import Recorded
from gpumem_magic.sources.device_memory import DeviceMemory, free_memory, used_blocks
from gpumem_magic.sources.objects.owners import Owned
from gpumem_magic.values.recording import Category, Device, LiveBlocks, Reading

if TYPE_CHECKING:
    from gpumem_magic.virtual.gpu import VirtualGPU

_CATEGORIES = tuple(Category)


def virtual_memory(
    gpu: VirtualGPU,
    device: Device,
    reading: Reading,
    recorded: Recorded,
) -> DeviceMemory:
    """What the card's allocator holds."""
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
        locate_storage=lambda storage: gpu.storages.addresses.get(storage._cdata) or None,
        aside=gpu.tracker.suspended,
        told=recorded.told,
        sites=recorded.sites,
        libraries={a: library for (library, _, _), a in gpu.scratch.held.items() if a},
        stepped=recorded.stepped,
    )


def known_kinds(
    initial: LiveBlocks,
    seen: Sequence[tuple[int, tuple[Owned, ...]]],
    size_of: Callable[[int], int],
) -> dict[Category, int]:
    """Bytes by category of the blocks that are alive now and whose kind is known already.

    initial: what the cell found. seen: owners, as they were found so far, the latest last. size_of:
    the size of the block at an address; raises KeyError where there is none.
    """
    kinds: dict[int, Category] = {}
    if initial.category is not None:
        told = zip(initial.address.tolist(), initial.category.tolist(), strict=True)
        kinds = {address: _CATEGORIES[code] for address, code in told if code >= 0}
    for _, owned in seen[-1:]:
        kinds.update((o.address, o.category) for o in owned if o.category is not None)
    sizes: dict[Category, int] = {}
    for address, category in kinds.items():
        with suppress(KeyError):  # given back since
            sizes[category] = sizes.get(category, 0) + size_of(address)
    return sizes
