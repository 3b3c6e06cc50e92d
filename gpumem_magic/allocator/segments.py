"""Segments: memory taken from the device and given back, with the books kept on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpumem_magic.allocator.driver import SimulatedDriver
from gpumem_magic.allocator.pools import (
    ADDRESS_BITS,
    FREE,
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    SMALL_SEGMENT,
    SMALL_SIZE,
    UNMAPPED,
    WAITING,
    Block,
    ExpandableRange,
    Pool,
    merge,
    splice,
)
from gpumem_magic.allocator.statistics import Statistics
from gpumem_magic.values.recording import Action

Listener = Callable[[Action, int, int, int], None]
"""Called with (action, address, size, requested), sizes in bytes."""


def segment_size(size: int, large_segment_size: int) -> int:
    """The bytes to ask of the device for a block of `size` (rounded) bytes."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE_ALLOC:
        return large_segment_size
    return -(-size // ROUND_LARGE) * ROUND_LARGE


class Segments:
    """What this process holds of the device: segments, and mapped parts of expandable ones.

    oldest_first: of free blocks of one size, that of the oldest segment is used, as from PyTorch
    2.12 on (c10/cuda/CUDACachingAllocator.cpp); else the one at the lowest address.
    """

    def __init__(
        self,
        driver: SimulatedDriver,
        statistics: Statistics,
        max_split_size: int,
        oldest_first: bool = False,
    ) -> None:
        self._step = oldest_first << ADDRESS_BITS
        self._rank = 0
        self.driver = driver
        self.statistics = statistics
        self.max_split_size = max_split_size
        self.on_event: Listener | None = None
        self.kept: set[int] = set()  # streams whose segments stay: those of CUDA graphs' pools

    def allocate(self, pool: Pool, stream: int, size: int) -> Block | None:
        """A new segment as one block, not yet in its pool; None where the device has no room."""
        address = self.driver.malloc(size)
        if address is None:
            return None
        self._count_segment(pool, size, 1)
        self._book(Action.SEGMENT_ALLOC, pool, address, size)
        return self._ranked(Block(address, size, pool, stream, FREE))

    def _ranked(self, block: Block) -> Block:
        """The first block of a new segment, behind those of all others."""
        self._rank += self._step
        block.rank = self._rank
        return block

    def release(self, block: Block) -> None:
        """Give a segment that is one free block back to the device."""
        block.pool.remove(block)
        self.driver.release(block.address, block.size)
        self._count_segment(block.pool, block.size, -1)
        self._book(Action.SEGMENT_FREE, block.pool, block.address, block.size)

    def expand(self, pool: Pool, stream: int, size: int) -> Block | None:
        """A block of at least `size` bytes at the lowest address that allows it, not in its pool.

        Maps what is missing; None where the device has no room (what was mapped until then stays).
        """
        block = self._lowest(pool, stream, size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            assert after is not None  # _lowest found enough addresses behind the block
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def unmap(self, block: Block) -> None:
        """Give the pages that lie wholly in a free block of an expandable segment back."""
        pages = block.range
        assert pages is not None
        pool, page = block.pool, pages.page
        start = pages.address - (pages.address - block.address) // page * page
        end = pages.address + (block.address + block.size - pages.address) // page * page
        if start >= end:
            return
        pool.remove(block)
        self._cut(block, start, end)
        block.state = UNMAPPED
        merge(block, block.previous)
        merge(block, block.next)
        pool.add_unmapped(block)
        self.driver.unmap(start, end - start)
        self._book(Action.SEGMENT_UNMAP, pool, start, end - start)
        if not block.is_split:
            pool.remove_unmapped(block)
            self.driver.unreserve(pages.address, pages.size)

    def _lowest(self, pool: Pool, stream: int, size: int) -> Block:
        """The first of the blocks, free or unmapped, that together have room for `size` bytes."""
        unmapped = pool.unmapped.get(stream)
        for block in unmapped.blocks if unmapped else ():
            before = block.previous
            first = before if before is not None and before.state == FREE else block
            if _has_room(first, size):
                return first
        return self._reserve(pool, stream)

    def _reserve(self, pool: Pool, stream: int) -> Block:
        """A new address range: 9/8 of the device, so that pages can move to its end."""
        page = pool.page
        size = -(-(self.driver.total + self.driver.total // 8) // page) * page
        pages = ExpandableRange(self.driver.reserve(size), size, page)
        block = self._ranked(Block(pages.address, size, pool, stream, UNMAPPED))
        block.range = pages
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map the first `size` bytes of an unmapped block, in whole pages; put it in its pool."""
        pages = block.range
        assert pages is not None
        pool = block.pool
        size = -(-size // pages.page) * pages.page
        address = block.address
        if not self.driver.map(address, size):
            return False
        pool.remove_unmapped(block)
        if size < block.size:
            rest = _part(block, address + size, block.size - size)
            splice(rest, block, block.next)
            pool.add_unmapped(rest)
            block.size = size
        block.state = FREE
        merge(block, block.previous)
        merge(block, block.next)
        pool.add(block)
        self._book(Action.SEGMENT_MAP, pool, address, size)
        return True

    def _cut(self, block: Block, start: int, end: int) -> None:
        """Shrink a block to start..end; what lies before and after becomes free blocks."""
        if start > block.address:
            before = _part(block, block.address, start - block.address)
            splice(before, block.previous, block)
            block.pool.add(before)
        if end < block.address + block.size:
            after = _part(block, end, block.address + block.size - end)
            splice(after, block, block.next)
            block.pool.add(after)
        block.address, block.size = start, end - start

    def _count_segment(self, pool: Pool, size: int, sign: int) -> None:
        pool.counts.segments.change(sign)
        self.statistics.all.segments.change(sign)
        if size >= self.max_split_size:
            self.statistics.oversize_segments.change(sign)

    def _book(self, action: Action, pool: Pool, address: int, size: int) -> None:
        grows = action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
        change = size if grows else -size
        pool.counts.reserved.change(change)
        self.statistics.all.reserved.change(change)
        if grows:
            self.statistics.device_allocs += 1
        else:
            self.statistics.device_frees += 1
        if self.on_event is not None:
            self.on_event(action, address, size, size)


def _part(block: Block, address: int, size: int) -> Block:
    part = Block(address, size, block.pool, block.stream, block.state)
    part.range, part.rank = block.range, block.rank
    return part


def _has_room(block: Block | None, size: int) -> bool:
    room = 0
    while room < size and block is not None and block.state in (FREE, UNMAPPED):
        room += block.size
        block = block.next
    return room >= size


class Waiting:
    """One event per block and stream; a block is done when all its events are."""

    def __init__(self) -> None:
        self._by_stream: dict[int, list[Block]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_stream)

    def add(self, block: Block) -> None:
        """Let a block wait for all streams that were recorded for it."""
        block.state = WAITING
        for stream in block.streams or ():
            block.events += 1
            self._by_stream.setdefault(stream, []).append(block)

    def finish(self) -> Iterator[Block]:
        """Let all work be done: yields each block when its last event is, stream by stream."""
        by_stream, self._by_stream = self._by_stream, {}
        for blocks in by_stream.values():
            for block in blocks:
                block.events -= 1
                if block.events == 0:
                    yield block

    def blocks(self) -> list[Block]:
        """The blocks that wait, each once."""
        return list({id(b): b for blocks in self._by_stream.values() for b in blocks}.values())
