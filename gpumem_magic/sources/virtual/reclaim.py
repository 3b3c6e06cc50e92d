"""Giving cached memory back to the device: all of it, the oversize blocks, or the oldest."""

from __future__ import annotations

from bisect import bisect_left

from gpumem_magic.sources.virtual.pools import SIZE_SHIFT, Block, Pool
from gpumem_magic.sources.virtual.segments import Segments


def release_cached(segments: Segments, pools: tuple[Pool, ...]) -> None:
    """Give back every segment that is one free block, and every empty page of expandable ones."""
    for pool in pools:
        expandable: list[Block] = []
        for block in pool.free_blocks():
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
    candidates = [block for block in pool.free_blocks() if not block.is_split]
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
