"""The card that the user's tensors are on when a dry run begins, a virtual one or a real one: what
a second card in its place begins with, and how the child gets there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from gpumem_magic.allocator.caching import AllocationFailed, CachingAllocator, SimulatedDriver
from gpumem_magic.allocator.driver import TOP
from gpumem_magic.allocator.settings import Settings
from gpumem_magic.allocator.snapshot import INACTIVE, Segment
from gpumem_magic.dryrun.on_host import StandIns, device_of
from gpumem_magic.dryrun.shapes.dry_kernels import DryKernels
from gpumem_magic.dryrun.shapes.valueless import tensor_over
from gpumem_magic.isolation.child import DryRunError
from gpumem_magic.sources import Source
from gpumem_magic.sources.cuda.memory import (
    BlocksUnlistedError,
    cuda_segments,
    cuda_settings,
    stream_ids,
)
from gpumem_magic.values.recording import Cell
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.gpu import VirtualGPU, new_allocator
from gpumem_magic.virtual.source import VirtualSource
from gpumem_magic.virtual.storages import ON_DEVICE_WITHOUT_BLOCK


@dataclass(frozen=True, slots=True)
class StartingState:
    """What a dry run begins with: an allocator (of a virtual card its own), and the address in it
    of each block of the card in use, by the address there. lacking: bytes of a block that found no
    room; 0 where all did."""

    allocator: CachingAllocator
    moved: dict[int, int]
    lacking: int = 0


class CardInUse:
    """A card with something on it, as a dry run begins with it. This one: nothing is in use."""

    def state(self, card: GPUModel) -> StartingState:
        """What `card` holds if it takes this one's place: the same, block for block, if it is the
        same, else what is alive, packed anew."""
        return StartingState(new_allocator(card), {})

    def born_in(self, cell: Cell) -> frozenset[int]:
        """Addresses of blocks that `cell` left, as far as that is known."""
        return frozenset()

    def address(self, storage: torch.UntypedStorage) -> int | None:
        """Where the storage is on the card; 0 for an empty one, None for one that is elsewhere."""
        return None

    def sent(self, cell: Cell) -> Sent:
        """This for another process, with the blocks that `cell` left."""
        return Sent(None, Settings())

    def hand_over(
        self, card: GPUModel, state: StartingState, kernels: DryKernels
    ) -> tuple[VirtualSource, list[str]]:
        """In the child: the source that goes on with `card`, all tensors on it; and sentences, to
        which later ones are added."""
        return _new_source(card, state, kernels), []


@dataclass(frozen=True, slots=True)
class Sent:
    """A card in use as it is sent to another process. name: None for no card."""

    name: str | None
    settings: Settings
    segments: tuple[Segment, ...] = ()
    born: frozenset[int] = frozenset()

    def card(self, storages: Iterable[Arrived]) -> CardInUse:
        """The card there, with what arrived of its storages."""
        return CardInUse() if self.name is None else _SentCard(self, tuple(storages))

    def state(self, card: GPUModel) -> StartingState:
        """The segments on a card of their own name; expandable ones are packed anew."""
        if card.name != self.name or any(segment.expandable for segment in self.segments):
            return _packed(self.segments, card, self.settings)
        lowest = min((segment.address for segment in self.segments), default=TOP)
        driver = SimulatedDriver(card.total, context=card.context, top=lowest)
        driver.used = sum(segment.size for segment in self.segments)
        same = CachingAllocator.from_snapshot(driver, self.segments, self.settings)
        return StartingState(same, {block.address: block.address for block in same.blocks()})


Arrived = tuple[torch.UntypedStorage, int | None, bool]
"""A storage made anew, its address on the card (None: one of the host), whether it has values."""


def card_in_use(source: Source | None) -> CardInUse:
    """The card of a source; without one, none has anything on it."""
    if source is None:
        return CardInUse()
    return _VirtualCard(source) if isinstance(source, VirtualSource) else _RealCard(source)


class _VirtualCard(CardInUse):
    """A virtual card: its tensors are host memory, and stay where they are, values and all."""

    def __init__(self, source: VirtualSource) -> None:
        self._source = source

    def state(self, card: GPUModel) -> StartingState:
        allocator = self._source.gpu.allocator
        if card.name != self._source.gpu.model.name:
            return _packed(allocator.snapshot(), card, allocator.settings)
        return StartingState(allocator, {b.address: b.address for b in allocator.blocks()})

    def born_in(self, cell: Cell) -> frozenset[int]:
        return self._source.born_in(cell)

    def address(self, storage: torch.UntypedStorage) -> int | None:
        return self._source.gpu.storages.addresses.get(storage._cdata)

    def sent(self, cell: Cell) -> Sent:
        gpu = self._source.gpu
        segments = tuple(gpu.allocator.snapshot())
        return Sent(gpu.model.name, gpu.allocator.settings, segments, self.born_in(cell))

    def hand_over(
        self, card: GPUModel, state: StartingState, kernels: DryKernels
    ) -> tuple[VirtualSource, list[str]]:
        state.allocator.set_total(card.total)
        self._source.become(card, state.allocator, state.moved, kernels)
        return self._source, []


class _RealCard(CardInUse):
    """A CUDA device, with what PyTorch tells its allocator holds as of now. In the child no call
    may reach the driver: tensors get valueless stand-ins on the host, in place."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: list[torch.UntypedStorage] = []  # in the child: to free them asks the driver
        try:
            segments = _settled(cuda_segments(source.device.index))
        except BlocksUnlistedError as error:
            raise DryRunError(
                f"a prediction begins with what is on the device, but {error}"
            ) from None
        settings = cuda_settings(source.device.index)
        # Asking for the stream would initialise the device.
        used = torch.cuda.is_initialized()
        self._stream = torch.cuda.current_stream(source.device.index).stream_id if used else 0
        self._now = Sent(source.device.name, settings, segments)

    def state(self, card: GPUModel) -> StartingState:
        return self._now.state(card)

    def born_in(self, cell: Cell) -> frozenset[int]:
        return self._source.born_in(cell)

    def address(self, storage: torch.UntypedStorage) -> int | None:
        device = device_of(storage)
        here = device.type == "cuda" and device.index == self._source.device.index
        return storage.data_ptr() if here else None

    def sent(self, cell: Cell) -> Sent:
        return replace(self._now, born=self.born_in(cell))

    def hand_over(
        self, card: GPUModel, state: StartingState, kernels: DryKernels
    ) -> tuple[VirtualSource, list[str]]:
        source = _new_source(card, state, kernels)
        source.gpu.storages.stream = self._stream
        notes: list[str] = []
        stand_ins = StandIns(source.gpu, kernels.valueless, state.moved, notes)
        self._kept = stand_ins.put_in_place()
        _find_workspaces(self._now.segments, source.gpu, state.moved)
        return source, notes


class _SentCard(CardInUse):
    """A card of another process, with what was sent of it."""

    def __init__(self, sent: Sent, storages: tuple[Arrived, ...]) -> None:
        self._sent = sent
        self._storages = list(storages)

    def state(self, card: GPUModel) -> StartingState:
        return self._sent.state(card)

    def born_in(self, cell: Cell) -> frozenset[int]:
        return self._sent.born

    def hand_over(
        self, card: GPUModel, state: StartingState, kernels: DryKernels
    ) -> tuple[VirtualSource, list[str]]:
        source = _new_source(card, state, kernels)
        while self._storages:
            storage, address, valued = self._storages.pop()
            if not valued:
                kernels.valueless.mark(storage)
            if address is not None:
                whole = tensor_over(storage, torch.uint8, (storage.nbytes(),), (1,))
                at = state.moved.get(address, ON_DEVICE_WITHOUT_BLOCK)
                source.gpu.storages.place(whole, at)
        _find_workspaces(self._sent.segments, source.gpu, state.moved)
        return source, []


def _new_source(card: GPUModel, state: StartingState, kernels: DryKernels) -> VirtualSource:
    return VirtualSource(card, VirtualGPU(card, allocator=state.allocator, compute=kernels))


def _find_workspaces(
    segments: Iterable[Segment], gpu: VirtualGPU, moved: Mapping[int, int]
) -> None:
    """The workspaces of cuBLAS are known by their sizes, as no tensor is in them."""
    owned = {0, *gpu.storages.addresses.values()}
    blocks = ((block, s.stream) for s in segments for block in s.blocks if block.allocated)
    placed = ((b.requested, stream, moved.get(b.address, 0)) for b, stream in blocks)
    gpu.scratch.find_workspaces(each for each in placed if each[2] not in owned)


def _packed(segments: Iterable[Segment], card: GPUModel, settings: Settings) -> StartingState:
    """Everything that is alive, allocated in the order of its addresses on an empty card."""
    packed = new_allocator(card, settings)
    moved: dict[int, int] = {}
    for segment in segments:
        for block in segment.blocks:
            if block.allocated:
                try:
                    moved[block.address] = packed.malloc(block.requested, segment.stream)
                except AllocationFailed:
                    return StartingState(packed, moved, lacking=block.requested)
    return StartingState(packed, moved)


def _settled(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """`segments` when other streams are done with what waits for them, which go by their ids."""
    segments = tuple(segments)
    ids = stream_ids(segments)
    return tuple(
        replace(
            segment,
            stream=ids.get(segment.stream, segment.stream),
            blocks=tuple(
                block if block.allocated else replace(block, state=INACTIVE, requested=0)
                for block in segment.blocks
            ),
        )
        for segment in segments
    )
