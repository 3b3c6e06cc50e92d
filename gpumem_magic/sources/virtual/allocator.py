"""PyTorch's caching allocator, simulated: the policy of c10/cuda/CUDACachingAllocator.cpp, no torch.

Everything the real one decides is decided here in the same order: rounding, pools, best fit, splits,
merges, releases and retries. What it asks of the device goes through a Driver.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from gpumem_magic.events import Action
from gpumem_magic.sources.virtual.driver import Driver, SimulatedDriver
from gpumem_magic.sources.virtual.oom_text import AllocationFailed
from gpumem_magic.sources.virtual.pools import (
    ALLOCATED,
    FREE,
    MIN_BLOCK,
    SIZE_SHIFT,
    SMALL_SIZE,
    WAITING,
    Block,
    Pool,
    merge,
    split,
)
from gpumem_magic.sources.virtual.reclaim import collect_garbage, release_cached, release_oversize
from gpumem_magic.sources.virtual.rounding import round_size
from gpumem_magic.sources.virtual.search import best_fit
from gpumem_magic.sources.virtual.segments import Listener, Segments, segment_size
from gpumem_magic.sources.virtual.settings import UNLIMITED, Settings
from gpumem_magic.sources.virtual.snapshot import Segment, rebuild, take_snapshot
from gpumem_magic.sources.virtual.statistics import Counts, Statistics

__all__ = ["AllocationFailed", "CachingAllocator", "Driver", "SimulatedDriver"]

_ALLOC, _FREE, _FREE_COMPLETED = Action.ALLOC, Action.FREE, Action.FREE_COMPLETED


class CachingAllocator:
    """The caching allocator of one device. Sizes and addresses are in bytes.

    on_event(action, address, size, requested) is called for every event; `size` is the whole block.
    streams_busy: while True, work on other streams is still running, so that blocks marked by
    `record_stream` wait for `synchronize` or for a release of the cache. Otherwise it is done by the
    next malloc, as on a device whose kernels take no time.
    """

    def __init__(
        self,
        driver: Driver,
        settings: Settings | None = None,
        on_event: Listener | None = None,
        device: int = 0,
    ) -> None:
        self.driver = driver
        self.device = device
        self.streams_busy = False
        self._settings = settings = settings or Settings()
        most = settings.max_split_size
        self._statistics = Statistics(-1 if most == UNLIMITED else most)
        self._counts = self._statistics.all
        self._segments = Segments(driver, self._statistics, most)
        self._small = Pool(True, self._statistics.small)
        self._large = Pool(False, self._statistics.large)
        self._live: dict[int, Block] = {}
        self._waiting: dict[int, list[Block]] = {}
        self._risen = False  # something rose since peaks were noted
        self._allowed: int | None = None
        self.on_event = on_event
        self.set_memory_fraction(settings.memory_fraction)
        self._apply_settings()

    @property
    def on_event(self) -> Listener | None:
        return self._on_event

    @on_event.setter
    def on_event(self, listener: Listener | None) -> None:
        self._on_event = self._segments.on_event = listener

    @property
    def settings(self) -> Settings:
        """May be replaced at any time, as torch.cuda.memory._set_allocator_settings does."""
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = replace(settings, memory_fraction=self._settings.memory_fraction)
        self._apply_settings()

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
        size = (
            round_size(requested, self._divisions)
            if self._divisions is not None
            else (requested + MIN_BLOCK - 1) & -MIN_BLOCK
        )
        pool = self._small if size <= SMALL_SIZE else self._large
        if self._ages:
            pool.searches += 1
        free = pool.free.get(stream)
        block = None
        if free is not None:
            index = bisect_left(free.keys, size << SIZE_SHIFT)
            if index < len(free.keys):
                if not self._first_fits:
                    index = best_fit(free, index, size, self._settings)
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
            self._statistics.note_peaks()
        size = block.size
        counts, everything = block.pool.counts, self._counts
        counts.blocks -= 1
        counts.allocated -= size
        everything.blocks -= 1
        everything.allocated -= size
        if size >= self._segments.max_split_size:
            self._statistics.oversize_allocations.change(-1)
        if self._on_event is not None:
            self._on_event(_FREE, address, size, block.requested)
        if block.streams is None:
            self._complete(block)
        else:
            self._wait(block)

    def size_of(self, address: int) -> int:
        """The size of the whole block that was handed out at `address`."""
        return self._live[address].size

    def record_stream(self, address: int, stream: int) -> None:
        """Say that work on another stream uses the block: its free will wait for that stream."""
        block = self._live[address]
        if stream == block.stream:
            return
        if block.streams is None:
            block.streams = []
        if stream not in block.streams:
            block.streams.append(stream)

    def synchronize(self) -> None:
        """Let all work be done: blocks that waited for a stream become free."""
        waiting, self._waiting = self._waiting, {}
        for blocks in waiting.values():
            for block in blocks:
                block.events -= 1
                if block.events == 0:
                    self._stop_waiting(block)

    def empty_cache(self) -> None:
        """Give everything that is cached back to the device, as far as whole segments are free."""
        self._statistics.synchronizations += 1
        self.synchronize()
        release_cached(self._segments, (self._large, self._small))

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit what may be reserved to a part of the device. Raises ValueError outside 0..1."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        self._allowed = int(fraction * self.driver.total) if fraction < 1 else None
        self._ages = self._allowed is not None and self._settings.garbage_collection_threshold > 0

    def stats(self) -> dict[str, int]:
        """What torch.cuda.memory_stats() would return."""
        return self._statistics.flat()

    def reset_peaks(self) -> None:
        """Let every peak be what is held now (torch.cuda.reset_peak_memory_stats)."""
        self._statistics.reset_peaks()

    def reset_accumulated(self) -> None:
        """Start all running sums anew (torch.cuda.reset_accumulated_memory_stats)."""
        self._statistics.reset_accumulated()

    def snapshot(self) -> list[Segment]:
        """All segments by address, each with its blocks; what nobody mapped is left out."""
        waiting = {id(block): block for blocks in self._waiting.values() for block in blocks}
        return take_snapshot((self._small, self._large), [*self._live.values(), *waiting.values()])

    @classmethod
    def from_snapshot(
        cls, driver: Driver, segments: Iterable[Segment], settings: Settings | None = None
    ) -> CachingAllocator:
        """An allocator that holds `segments` already; the driver must count them as used."""
        allocator = cls(driver, settings)
        for segment in segments:
            pool = allocator._small if segment.pool == "small" else allocator._large
            for block in rebuild(segment, pool, allocator._statistics):
                allocator._live[block.address] = block
        allocator._risen = True
        return allocator

    def _hand_out(self, block: Block, size: int, requested: int) -> int:
        """Split what is too much off a block that was found, and count it as allocated."""
        pool = block.pool
        was_split = block.previous is not None or block.next is not None
        if block.size - size >= pool.split_from and size < pool.split_below:
            block = split(block, size)
            if block.range is None:
                self._count_inactive(
                    pool.counts, -size if was_split else block.next.size, not was_split
                )
        elif was_split and block.range is None:
            self._count_inactive(pool.counts, -block.size, -1)
        size = block.size
        block.state = ALLOCATED
        block.requested = requested
        address = block.address
        self._live[address] = block
        self._risen = True
        counts, everything = pool.counts, self._counts
        counts.blocks += 1
        counts.blocks_added += 1
        counts.allocated += size
        counts.allocated_added += size
        counts.requested += requested
        counts.requested_added += requested
        everything.blocks += 1
        everything.blocks_added += 1
        everything.allocated += size
        everything.allocated_added += size
        everything.requested += requested
        everything.requested_added += requested
        if size >= self._segments.max_split_size:
            self._statistics.oversize_allocations.change(1)
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
        before = merge(block, block.previous) if block.previous is not None else 0
        after = merge(block, block.next) if block.next is not None else 0
        pool.add(block)
        if block.range is None:
            joined = (before > 0) + (after > 0)
            if block.previous is not None or block.next is not None:
                self._count_inactive(pool.counts, size, 1 - joined)
            elif joined:
                self._count_inactive(pool.counts, -before - after, -joined)

    def _count_inactive(self, counts: Counts, size: int, blocks: int) -> None:
        """Note a change of the free pieces of split segments."""
        for kind in (counts, self._counts):
            kind.split_bytes.change(size)
            if blocks:
                kind.splits.change(blocks)

    def _wait(self, block: Block) -> None:
        block.state = WAITING
        for stream in block.streams or ():
            block.events += 1
            self._waiting.setdefault(stream, []).append(block)
        for counts in (block.pool.counts, self._counts):
            counts.waiting += 1
            counts.waiting_bytes += block.size

    def _stop_waiting(self, block: Block) -> None:
        if self._risen:
            self._risen = False
            self._statistics.note_peaks()
        for counts in (block.pool.counts, self._counts):
            counts.waiting -= 1
            counts.waiting_bytes -= block.size
        self._complete(block)

    def _obtain(self, pool: Pool, stream: int, size: int, requested: int) -> Block:
        """A block from the device, after giving cached memory back where that is needed."""
        if self._ages and self._allowed is not None:
            limit = int(self._settings.garbage_collection_threshold * self._allowed)
            collect_garbage(self._segments, self._large, limit)
        block = self._ask(pool, stream, size)
        if (
            block is None
            and self._settings.max_split_size != UNLIMITED
            and release_oversize(self._segments, pool, stream, size)
        ):
            block = self._ask(pool, stream, size)
        if block is None:
            self.empty_cache()
            self._statistics.retries += 1
            block = self._ask(pool, stream, size)
        if block is None:
            raise self._refuse(size, requested)
        return block

    def _ask(self, pool: Pool, stream: int, size: int) -> Block | None:
        segment = segment_size(size, self._settings.large_segment_size)
        if self._allowed is not None and self.reserved + segment > self._allowed:
            return None
        if self._settings.expandable_segments:
            return self._segments.expand(pool, stream, size)
        return self._segments.allocate(pool, stream, segment)

    def _refuse(self, size: int, requested: int) -> AllocationFailed:
        self._statistics.ooms += 1
        failed = AllocationFailed(
            requested=requested,
            segment=segment_size(size, self._settings.large_segment_size),
            device=self.device,
            device_total=self.driver.total,
            device_free=self.driver.free,
            processes=self.driver.processes(),
            allowed=self._allowed,
            allocated=self.allocated,
            reserved=self.reserved,
        )
        if self._on_event is not None:
            self._on_event(Action.OOM, 0, size, requested)
        return failed

    def _apply_settings(self) -> None:
        settings = self._settings
        expandable = settings.expandable_segments
        self._segments.max_split_size = settings.max_split_size
        self._large.page = settings.large_segment_size
        for pool in (self._small, self._large):
            plain = not pool.small and not expandable
            pool.split_from = SMALL_SIZE + 1 if plain else MIN_BLOCK
            pool.split_below = settings.max_split_size if plain else UNLIMITED
        self._divisions = (
            settings.roundup_power2_divisions
            if any(count > 1 for count in settings.roundup_power2_divisions)
            else None
        )
        ever_expandable = expandable or not getattr(self, "_first_fits", True)
        self._first_fits = settings.max_split_size == UNLIMITED and not ever_expandable
        self._ages = self._allowed is not None and settings.garbage_collection_threshold > 0
