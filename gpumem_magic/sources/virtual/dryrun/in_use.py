"""The card that the user's tensors are on when a dry run begins: a virtual one, or a real one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import torch

from gpumem_magic.sources import Source
from gpumem_magic.sources.cuda_segments import cuda_segments
from gpumem_magic.sources.virtual.allocator import CachingAllocator, SimulatedDriver
from gpumem_magic.sources.virtual.catalog import GPUModel
from gpumem_magic.sources.virtual.cloning import clone
from gpumem_magic.sources.virtual.driver import TOP
from gpumem_magic.sources.virtual.settings import Settings
from gpumem_magic.sources.virtual.snapshot import Segment
from gpumem_magic.sources.virtual.source import VirtualSource

_IN_USE = "active_allocated"


class CardInUse(Protocol):
    """A card, what is on it, and a second allocator in the same state."""

    settings: Settings

    def segments(self) -> list[Segment]:
        """What its allocator holds."""

    def second_allocator(self, card: GPUModel) -> CachingAllocator | None:
        """An allocator in the same state, if `card` is this one and that can be had."""

    def address(self, storage: torch.UntypedStorage) -> int | None:
        """Where the storage is on the card; 0 for an empty one, None for one that is elsewhere."""

    def set_aside(self) -> AbstractContextManager[None]:
        """Within, torch can be told that another card is there."""

    def tell(self, source: VirtualSource, moved: dict[int, int]) -> None:
        """Let `source` know what is known of the blocks; moved: their addresses there."""


def card_in_use(source: Source | None) -> CardInUse | None:
    """The card of a source that measures one."""
    if source is None:
        return None
    return VirtualCard(source) if isinstance(source, VirtualSource) else RealCard(source)


class VirtualCard:
    """A virtual card: its allocator is at hand."""

    def __init__(self, source: VirtualSource) -> None:
        self._source = source
        self._gpu = source.gpu
        self.settings = source.gpu.allocator.settings

    def segments(self) -> list[Segment]:
        """As in CardInUse."""
        return self._gpu.allocator.snapshot()

    def second_allocator(self, card: GPUModel) -> CachingAllocator | None:
        """As in CardInUse."""
        return clone(self._gpu.allocator) if card == self._gpu.model else None

    def address(self, storage: torch.UntypedStorage) -> int | None:
        """As in CardInUse."""
        return self._gpu.storages.addresses.get(storage._cdata)

    def set_aside(self) -> AbstractContextManager[None]:
        """As in CardInUse."""
        return self._gpu.set_aside()

    def tell(self, source: VirtualSource, moved: dict[int, int]) -> None:
        """As in CardInUse."""
        held = self._gpu.scratch.held.items()
        source.gpu.scratch.held.update({k: moved[at] for k, at in held if at in moved})
        source.take_over(self._source, moved)


class RealCard:
    """A CUDA device: PyTorch tells what its allocator holds, as of now."""

    def __init__(self, source: Source) -> None:
        self._device = source.device
        self.settings = Settings.from_environment()
        self._segments = [_settled(segment) for segment in cuda_segments(source.device.index)]

    def segments(self) -> list[Segment]:
        """As in CardInUse."""
        return self._segments

    def second_allocator(self, card: GPUModel) -> CachingAllocator | None:
        """As in CardInUse; None where segments are expandable."""
        segments = self._segments
        if card.name != self._device.name or any(segment.expandable for segment in segments):
            return None
        lowest = min((segment.address for segment in segments), default=TOP)
        driver = SimulatedDriver(card.total, context=card.context, top=lowest)
        driver.used = sum(segment.size for segment in segments)
        return CachingAllocator.from_snapshot(driver, segments, self.settings)

    def address(self, storage: torch.UntypedStorage) -> int | None:
        """As in CardInUse."""
        if storage.device.type != "cuda" or storage.device.index != self._device.index:
            return None
        return storage.data_ptr()

    def set_aside(self) -> AbstractContextManager[None]:
        """As in CardInUse: torch needs no telling."""
        return nullcontext()

    def tell(self, source: VirtualSource, moved: dict[int, int]) -> None:
        """As in CardInUse: the workspaces of cuBLAS are known by their sizes, as no tensor is in
        them. The first of each is that of the forward pass, the next that of the backward one."""
        owned = set(source.gpu.storages.addresses.values())
        blocks = [b for s in self._segments for b in s.blocks if b.state == _IN_USE]
        free = [b for b in blocks if b.address in moved and moved[b.address] not in owned]
        scratch = source.gpu.scratch
        for library, size in scratch.workspaces():
            found = [moved[block.address] for block in free if block.requested == size]
            for in_backward, address in zip((False, True), found, strict=False):
                scratch.held[library, in_backward, 0] = address


def _settled(segment: Segment) -> Segment:
    """`segment` when other streams are done with what waits for them."""
    blocks = tuple(
        block if block.state == _IN_USE else replace(block, state="inactive", requested=0)
        for block in segment.blocks
    )
    return replace(segment, blocks=blocks)
