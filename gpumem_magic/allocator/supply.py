"""Where a block comes from when none is cached: the order of asking, releasing and asking again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from gpumem_magic.allocator.pools import SIZE_SHIFT, Block, Pool
from gpumem_magic.allocator.segments import Segments, segment_size
from gpumem_magic.allocator.settings import UNLIMITED, Settings


def release_cached(segments: Segments, pools: tuple[Pool, ...]) -> None:
    """Give back every segment that is one free block, and every empty page of expandable ones."""
    for pool in pools:
        expandable: list[Block] = []
        for block in pool.free_blocks():
            if block.stream in segments.kept:
                continue
            if block.range is not None:
                expandable.append(block)
            elif not block.is_split:
                segments.release(block)
        for block in expandable:
            segments.unmap(block)


def release_oversize(segments: Segments, pool: Pool, stream: int, size: int) -> bool:
    """Give back oversize blocks (>= max_split_size), at least `size` bytes; False if too few.

    One that is large enough goes alone, otherwise the largest go first.
    """
    wanted = max(size, segments.max_split_size)
    free = pool.free.get(stream)
    if free is None:
        return False
    index = bisect_left(free.keys, wanted << SIZE_SHIFT)
    if index < len(free.blocks) and free.blocks[index].range is None:
        segments.release(free.blocks[index])
        return True
    released = 0
    for block in reversed(free.blocks[:index]):
        if released >= wanted or block.size < segments.max_split_size:
            break
        if block.range is None:
            released += block.size
            segments.release(block)
    return released >= wanted


def collect_garbage(segments: Segments, pool: Pool, limit: int) -> None:
    """Give back unsplit free blocks, those of more than average age first, until `limit` is kept.

    The age of a block is the number of searches of its pool since it became free.
    """
    excess = segments.statistics.all.reserved.current - limit
    if excess <= 0:
        return
    free = (block for block in pool.free_blocks() if block.stream not in segments.kept)
    candidates = [block for block in free if not block.is_split]
    age = sum(pool.searches - block.born for block in candidates)
    count = len(candidates)
    released = True
    while excess > 0 and released and count:
        threshold = age / count
        released = False
        for block in candidates[:]:
            if block.range is None and pool.searches - block.born >= threshold:
                released = True
                excess -= block.size
                age -= pool.searches - block.born
                count -= 1
                candidates.remove(block)
                segments.release(block)


class Supply:
    """Asks the device for segments, within the limit of a memory fraction if there is one.

    allowed: that limit in bytes, or None.
    """

    def __init__(self, segments: Segments, settings: Settings) -> None:
        self._segments = segments
        self.settings = settings
        self.allowed: int | None = None

    def limit(self, fraction: float) -> None:
        """Allow a part of the device. Raises ValueError outside 0..1."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        total = self._segments.driver.total
        self.allowed = int(fraction * total) if fraction < 1 else None

    @property
    def collects(self) -> bool:
        """Garbage is collected, so that the age of free blocks matters."""
        return self.allowed is not None and self.settings.garbage_collection_threshold > 0

    def segment_size(self, size: int) -> int:
        """The bytes that a block of `size` bytes makes the device lose, if it is not expandable."""
        return segment_size(size, self.settings.large_segment_size)

    def obtain(
        self, pool: Pool, large: Pool, stream: int, size: int, release_cache: Callable[[], None]
    ) -> Block | None:
        """A block of at least `size` bytes from the device, in no pool; None where it has no room.

        Garbage is collected from the `large` pool only. `release_cache` gives back what is cached.
        """
        if self.collects and self.allowed is not None:
            limit = int(self.settings.garbage_collection_threshold * self.allowed)
            collect_garbage(self._segments, large, limit)
        block = self._ask(pool, stream, size)
        if (
            block is None
            and self.settings.max_split_size != UNLIMITED
            and release_oversize(self._segments, pool, stream, size)
        ):
            block = self._ask(pool, stream, size)
        if block is None:
            release_cache()
            self._segments.statistics.retries += 1
            block = self._ask(pool, stream, size)
        return block

    def _ask(self, pool: Pool, stream: int, size: int) -> Block | None:
        segment = self.segment_size(size)
        reserved = self._segments.statistics.all.reserved.current
        if self.allowed is not None and reserved + segment > self.allowed:
            return None
        if self.settings.expandable_segments:
            return self._segments.expand(pool, stream, size)
        return self._segments.allocate(pool, stream, segment)
