"""PyTorch's caching allocator, simulated: the policy of c10/cuda/CUDACachingAllocator.cpp.

What the real one decides is decided here in the same order: rounding, pools, best fit, splits,
merges, releases and retries. It is arithmetic; what it asks of the device goes through a driver.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpumem_magic.allocator.driver import SimulatedDriver
from gpumem_magic.allocator.oom_message import AllocationFailed, Refusal
from gpumem_magic.allocator.pools import (
    ALLOCATED,
    FREE,
    MIN_BLOCK,
    SIZE_SHIFT,
    SMALL_SIZE,
    Block,
    Pool,
    best_fit,
    merge,
    round_size,
    split,
)
from gpumem_magic.allocator.segments import Listener, Segments, Waiting
from gpumem_magic.allocator.settings import UNLIMITED, Settings
from gpumem_magic.allocator.snapshot import Segment, rebuild, take_snapshot
from gpumem_magic.allocator.statistics import Statistics
from gpumem_magic.allocator.supply import Supply, release_cached
from gpumem_magic.values.recording import Action

__all__ = ["AllocationFailed", "CachingAllocator", "SimulatedDriver"]

_ALLOC, _FREE, _FREE_COMPLETED = Action.ALLOC, Action.FREE, Action.FREE_COMPLETED


class CachingAllocator:
    """The caching allocator of one device. Sizes and addresses are in bytes.

    oldest_first: see Segments.
    on_event(action, address, size, requested) is called for every event, with the size of the whole
    block; it may be replaced at any time.
    streams_busy: while True, work on other streams is still running, so that blocks marked by
    `record_stream` wait for `synchronize` or for a release of the cache. Otherwise it is done by
    the next malloc, as on a device whose kernels take no time.
    """

    def __init__(
        self,
        driver: SimulatedDriver,
        settings: Settings | None = None,
        on_event: Listener | None = None,
        device: int = 0,
        oldest_first: bool = False,
    ) -> None:
        self.driver = driver
        self.device = device
        self.streams_busy = False
        settings = settings or Settings()
        self.statistics = Statistics()
        self._counts = self.statistics.all
        most = settings.max_split_size
        self._segments = Segments(driver, self.statistics, most, oldest_first)
        self._supply = Supply(self._segments, settings)
        self._small = Pool(True, self.statistics.small)
        self._large = Pool(False, self.statistics.large)
        self._live: dict[int, Block] = {}
        self._waiting = Waiting()
        self._risen = False  # something rose since peaks were noted
        self._first_fits = True  # no block is expandable or oversize: the first that fits is best
        self.on_event = on_event
        self.start_with(settings)

    def start_with(self, settings: Settings) -> None:
        """Take the settings that the process has when the device is first used."""
        most = settings.max_split_size
        self.statistics.max_split_size = -1 if most == UNLIMITED else most
        self.settings = settings
        self.set_memory_fraction(settings.memory_fraction)

    @property
    def on_event(self) -> Listener | None:
        """Who is told of every event."""
        return self._on_event

    @on_event.setter
    def on_event(self, listener: Listener | None) -> None:
        self._on_event = self._segments.on_event = listener

    @property
    def settings(self) -> Settings:
        """May be replaced at any time, as torch.cuda.memory._set_allocator_settings does.

        The memory fraction is taken from the first settings only, as in PyTorch.
        """
        return self._supply.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._supply.settings = settings
        self._segments.max_split_size = most = settings.max_split_size
        self._large.page = settings.large_segment_size
        expandable = settings.expandable_segments
        for pool in (self._small, self._large):
            plain = not pool.small and not expandable
            pool.split_from = SMALL_SIZE + 1 if plain else MIN_BLOCK
            pool.split_below = most if plain else UNLIMITED
        rounds = any(count > 1 for count in settings.roundup_power2_divisions)
        self._divisions = settings.roundup_power2_divisions if rounds else None
        if expandable or most != UNLIMITED:
            self._first_fits = False
        self._ages = self._supply.collects

    @property
    def allocated(self) -> int:
        """Bytes of blocks handed out."""
        return self._counts.allocated

    @property
    def active(self) -> int:
        """Bytes of blocks handed out, and of those that wait for another stream."""
        return self._counts.allocated + self._counts.waiting_bytes

    @property
    def requested(self) -> int:
        """Bytes that were asked for, of the active blocks."""
        return self._counts.requested

    @property
    def reserved(self) -> int:
        """Bytes held of the device."""
        return self._counts.reserved.current

    def malloc(self, requested: int, stream: int = 0) -> int:
        """The address of a block of at least `requested` bytes, to be used on `stream`.

        Raises AllocationFailed when the device has no room, ValueError when requested < 1.
        """
        if requested < 1:
            raise ValueError(f"a block of {requested} bytes: PyTorch never asks for one")
        if self._waiting and not self.streams_busy:
            self.synchronize()
        size = (requested + MIN_BLOCK - 1) & -MIN_BLOCK
        if self._divisions is not None:
            size = round_size(requested, self._divisions)
        pool = self._small if size <= SMALL_SIZE else self._large
        if self._ages:
            pool.searches += 1
        free = pool.free.get(stream)
        block = None
        if free is not None:
            index = bisect_left(free.keys, size << SIZE_SHIFT)
            if index < len(free.keys):
                if not self._first_fits:
                    index = best_fit(free, index, size, self._supply.settings)
                if index >= 0:
                    del free.keys[index]
                    block = free.blocks.pop(index)
        if block is None:
            block = self._obtain(pool, stream, size, requested)
        return self._hand_out(block, size, requested)

    def free(self, address: int) -> None:
        """Give a block back. Raises ValueError when there is none at `address`."""
        block = self._live.pop(address, None)
        if block is None:
            raise ValueError(f"no block was handed out at address {address:#x}")
        if self._risen:
            self._risen = False
            self.statistics.note_peaks()
        self.statistics.give_back(block.pool.counts, size := block.size)
        if size >= self._segments.max_split_size:
            self.statistics.oversize_allocations.change(-1)
        if self._on_event is not None:
            self._on_event(_FREE, address, size, block.requested)
        if block.streams is None:
            self._complete(block)
        else:
            self._waiting.add(block)
            self.statistics.wait(block.pool.counts, size, 1)

    def size_of(self, address: int) -> int:
        """The size of the whole block that was handed out at `address`."""
        return self._live[address].size

    def record_stream(self, address: int, stream: int) -> None:
        """Say that work on another stream uses the block: its free will wait for that stream."""
        block = self._live[address]
        if stream != block.stream and stream not in (block.streams or ()):
            block.streams = [*(block.streams or ()), stream]

    def synchronize(self) -> None:
        """Let all work be done: blocks that waited for a stream become free."""
        for block in self._waiting.finish():
            if self._risen:
                self._risen = False
                self.statistics.note_peaks()
            self.statistics.wait(block.pool.counts, -block.size, -1)
            self._complete(block)

    def empty_cache(self) -> None:
        """Give everything that is cached back to the device, as far as whole segments are free."""
        self.statistics.synchronizations += 1
        self.synchronize()
        release_cached(self._segments, (self._large, self._small))

    def keep(self, stream: int) -> None:
        """Let what is cached for a stream stay: a CUDA graph uses it again."""
        self._segments.kept.add(stream)

    def let_go(self, stream: int) -> None:
        """Let what is cached for a stream go with the rest."""
        self._segments.kept.discard(stream)

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit what may be reserved to a part of the device. Raises ValueError outside 0..1."""
        self._supply.limit(fraction)
        self._supply.settings = replace(self.settings, memory_fraction=fraction)
        self._ages = self._supply.collects

    def set_total(self, total: int) -> None:
        """Go on with a device of so many bytes, and the same part of it."""
        self.driver.total = total
        self.set_memory_fraction(self.settings.memory_fraction)

    def stats(self) -> dict[str, int]:
        """What torch.cuda.memory_stats() would return."""
        return self.statistics.flat()

    def reset_peaks(self) -> None:
        """Let every peak be what is held now (torch.cuda.reset_peak_memory_stats)."""
        self.statistics.reset_peaks()

    def reset_accumulated(self) -> None:
        """Start all running sums anew (torch.cuda.reset_accumulated_memory_stats)."""
        self.statistics.reset_accumulated()

    def snapshot(self) -> list[Segment]:
        """All segments by address, each with its blocks; what nobody mapped is left out."""
        return take_snapshot(self.blocks())

    def blocks(self) -> list[Block]:
        """All blocks but those without memory behind them, in any order."""
        handed_out = (*self._live.values(), *self._waiting.blocks())
        return [*handed_out, *self._small.free_blocks(), *self._large.free_blocks()]

    @classmethod
    def from_snapshot(
        cls, driver: SimulatedDriver, segments: Iterable[Segment], settings: Settings | None = None
    ) -> CachingAllocator:
        """An allocator that holds `segments` already; the driver must count them as used."""
        allocator = cls(driver, settings)
        pools = {"small": allocator._small, "large": allocator._large}
        for segment in segments:
            blocks = rebuild(segment, pools[segment.pool], allocator.statistics)
            allocator._live.update((block.address, block) for block in blocks)
        allocator._risen = True
        return allocator

    def _hand_out(self, block: Block, size: int, requested: int) -> int:
        """Split what is too much off a block that was found, and count it as allocated."""
        pool = block.pool
        was_split = block.previous is not None or block.next is not None
        if block.size - size >= pool.split_from and size < pool.split_below:
            rest, block = block, split(block, size)
            bytes_left, pieces = (-size, 0) if was_split else (rest.size, 1)
        else:
            bytes_left, pieces = (-block.size, -1) if was_split else (0, 0)
        if bytes_left and block.range is None:
            self.statistics.split(pool.counts, bytes_left, pieces)
        size, address = block.size, block.address
        block.state, block.requested = ALLOCATED, requested
        self._live[address] = block
        self._risen = True
        self.statistics.take(pool.counts, size, requested)
        if size >= self._segments.max_split_size:
            self.statistics.oversize_allocations.change(1)
        if self._on_event is not None:
            self._on_event(_ALLOC, address, size, requested)
        return address

    def _complete(self, block: Block) -> None:
        """Make a block that nothing uses any more free, joined with its free neighbours."""
        if self._on_event is not None:
            self._on_event(_FREE_COMPLETED, block.address, block.size, block.requested)
        pool, size = block.pool, block.size
        pool.counts.requested -= block.requested
        self._counts.requested -= block.requested
        block.state = FREE
        block.streams = None
        last, following = block.previous, block.next
        before = merge(block, last) if last is not None and last.state == FREE else 0
        after = merge(block, following) if following is not None and following.state == FREE else 0
        pool.add(block)
        if block.range is None:
            joined = (before > 0) + (after > 0)
            if block.previous is not None or block.next is not None:
                self.statistics.split(pool.counts, size, 1 - joined)
            elif joined:
                self.statistics.split(pool.counts, -before - after, -joined)

    def _obtain(self, pool: Pool, stream: int, size: int, requested: int) -> Block:
        block = self._supply.obtain(pool, self._large, stream, size, self.empty_cache)
        if block is not None:
            return block
        self.statistics.ooms += 1
        refusal = Refusal(
            requested=requested,
            segment=self._supply.segment_size(size),
            device=self.device,
            total=self.driver.total,
            free=self.driver.free,
            processes=self.driver.processes(),
            allowed=self._supply.allowed,
            allocated=self.allocated,
            reserved=self.reserved,
        )
        if self._on_event is not None:
            self._on_event(Action.OOM, 0, size, requested)
        raise AllocationFailed(refusal)


def clone(allocator: CachingAllocator) -> CachingAllocator:
    """A second allocator in the state of the first one, down to every block, with a device of its
    own; nobody listens to it."""
    listener, allocator.on_event = allocator.on_event, None
    try:
        # Blocks refer to their neighbours: following them would be one call deep for each.
        blocks = list(_blocks(allocator))
        memo: dict[int, object] = {id(block): copy.copy(block) for block in blocks}
        cloned = copy.deepcopy(allocator, memo)
        for block in blocks:
            twin = memo[id(block)]
            for name in ("previous", "next"):
                neighbour = getattr(block, name)
                setattr(twin, name, neighbour and memo[id(neighbour)])
            for name in ("pool", "range", "streams"):
                setattr(twin, name, copy.deepcopy(getattr(block, name), memo))
    finally:
        allocator.on_event = listener
    return cloned


def _blocks(allocator: CachingAllocator) -> Iterator[Block]:
    """Every block once, in any state."""
    seen: set[int] = set()
    for start in allocator.blocks():
        block: Block | None = start
        while block is not None and block.previous is not None:
            block = block.previous
        while block is not None and id(block) not in seen:
            seen.add(id(block))
            yield block
            block = block.next
