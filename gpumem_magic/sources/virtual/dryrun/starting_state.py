"""What a dry run starts from: the memory of the card in use, block for block, or what of it another
card would hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from gpumem_magic.sources.virtual.allocator import AllocationFailed, CachingAllocator
from gpumem_magic.sources.virtual.catalog import GPUModel
from gpumem_magic.sources.virtual.dryrun.in_use import CardInUse
from gpumem_magic.sources.virtual.dryrun.valueless import Valueless, tensor_over, untouched
from gpumem_magic.sources.virtual.gpu import VirtualGPU, new_allocator
from gpumem_magic.sources.virtual.settings import Settings
from gpumem_magic.sources.virtual.snapshot import Segment

_KEPT_VALUES = 2**20
"""Bytes up to which a copied storage keeps its values."""


@dataclass(frozen=True, slots=True)
class StartingState:
    """The allocator of a dry run, and the address in it of each block of the card in use, by the
    address there. lacking: bytes of a block that found no room; 0 where all did."""

    allocator: CachingAllocator
    moved: dict[int, int]
    lacking: int = 0


def starting_state(in_use: CardInUse | None, card: GPUModel) -> StartingState:
    """The memory of the card in use as it is, if `card` is the same, packed anew if another."""
    if in_use is None:
        return StartingState(new_allocator(card), {})
    same = in_use.second_allocator(card)
    if same is None:
        return _packed(in_use.segments(), card, in_use.settings)
    return StartingState(same, {block.address: block.address for block in same.blocks()})


def _packed(segments: Iterable[Segment], card: GPUModel, settings: Settings) -> StartingState:
    """Everything that is alive, allocated in the order of its addresses on an empty card."""
    packed = new_allocator(card, settings)
    moved: dict[int, int] = {}
    for segment in segments:
        for block in segment.blocks:
            if block.state == "active_allocated":
                try:
                    moved[block.address] = packed.malloc(block.requested, segment.stream)
                except AllocationFailed:
                    return StartingState(packed, moved, lacking=block.requested)
    return StartingState(packed, moved)


class CopiedStorages:
    """Copies of the user's storages for a dry run; those of the card lie in blocks that stand for
    theirs. Large ones, and those of a real card, are valueless; the others have their values.
    """

    def __init__(
        self,
        in_use: CardInUse | None,
        state: StartingState,
        gpu: VirtualGPU,
        valueless: Valueless,
    ) -> None:
        self._in_use = in_use
        self._moved = state.moved
        self._gpu = gpu
        self._valueless = valueless
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def copy_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The copy of `storage`, always the same one."""
        known = self._copies.get(storage._cdata)
        if known is not None:
            return known[1]
        address = None if self._in_use is None else self._in_use.address(storage)
        copy = self._copied(storage)
        if address is not None:
            whole = tensor_over(copy, torch.uint8, (copy.nbytes(),), (1,))
            self._gpu.storages.place(whole, self._moved.get(address))
        self._copies[storage._cdata] = storage, copy
        return copy

    def forget(self) -> None:
        """Let go of all copies: from here on they live as long as the cell's names want them."""
        self._copies.clear()

    def _copied(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        copy = untouched(storage.nbytes())
        if storage.nbytes() > _KEPT_VALUES or not _is_on_host(storage):
            self._valueless.mark(copy)
        else:
            copy.copy_(storage)
        return copy


def _is_on_host(storage: torch.UntypedStorage) -> bool:
    """Whether it can be read here: also that of a virtual card."""
    device: torch.device = torch._C.StorageBase.device.__get__(storage)  # type: ignore[attr-defined]
    return device.type == "cpu"
