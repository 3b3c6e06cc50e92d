"""Blocks of device memory, and the pools in which free ones wait in the order of a search."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from gpumem_magic.allocator.settings import INTERVALS, Settings
from gpumem_magic.allocator.statistics import Counts
from gpumem_magic.units import MIB

# CUDACachingAllocator.cpp: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kRoundLarge
MIN_BLOCK = 512

SMALL_SIZE = 1 * MIB

SMALL_SEGMENT = 2 * MIB

MIN_LARGE_ALLOC = 10 * MIB

ROUND_LARGE = 2 * MIB

ADDRESS_BITS = 60

SIZE_SHIFT = 92
"""Search order is that of `size << SIZE_SHIFT | rank + address`: by size, then by the rank of the
segment, then by address."""

FREE, ALLOCATED, WAITING, UNMAPPED = range(4)
"""States of a block. WAITING: given back, but another stream may still use it."""


class ExpandableRange:
    """The address range of one expandable segment; blocks tile it, mapped or not."""

    __slots__ = ("address", "page", "size")

    def __init__(self, address: int, size: int, page: int) -> None:
        self.address = address
        self.size = size
        self.page = page


class Block:
    """A piece of a segment; `previous` and `next` are its neighbours in memory, free or not."""

    __slots__ = (
        "address",
        "born",
        "events",
        "next",
        "pool",
        "previous",
        "range",
        "rank",
        "requested",
        "size",
        "state",
        "stream",
        "streams",
    )

    def __init__(self, address: int, size: int, pool: Pool, stream: int, state: int) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.stream = stream
        self.state = state
        self.requested = 0
        self.born = 0  # pool.searches when it became free: the older, the longer nobody wanted it
        self.events = 0
        self.previous: Block | None = None
        self.next: Block | None = None
        self.range: ExpandableRange | None = None
        self.rank = 0  # of its segment, above all addresses: see Segments
        self.streams: list[int] | None = None  # other streams that used it: record_stream

    @property
    def is_split(self) -> bool:
        """It is only part of its segment."""
        return self.previous is not None or self.next is not None

    @property
    def key(self) -> int:
        """Its place in the search order."""
        return self.size << SIZE_SHIFT | self.rank + self.address


class Sorted:
    """Blocks by key, in two parallel lists: bisection compares plain integers."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []

    def add(self, key: int, block: Block) -> None:
        """Put a block in its place."""
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, key: int) -> None:
        """Take out the block with this key, which must be there."""
        index = bisect_left(self.keys, key)
        del self.keys[index]
        del self.blocks[index]


class Pool:
    """The small or the large pool: its free and unmapped blocks by stream, and its counts."""

    __slots__ = (
        "counts",
        "free",
        "page",
        "searches",
        "small",
        "split_below",
        "split_from",
        "unmapped",
    )

    def __init__(self, small: bool, counts: Counts) -> None:
        self.small = small
        self.counts = counts
        self.free: dict[int, Sorted] = {}
        self.unmapped: dict[int, Sorted] = {}
        self.searches = 0
        self.page = SMALL_SEGMENT
        self.split_from = MIN_BLOCK
        self.split_below = 0

    def add(self, block: Block) -> None:
        """Put a block among the free ones."""
        block.state = FREE
        block.born = self.searches
        found = self.free.get(block.stream)
        if found is None:
            found = self.free[block.stream] = Sorted()
        keys = found.keys
        key = block.size << SIZE_SHIFT | block.rank + block.address
        index = bisect_left(keys, key)
        keys.insert(index, key)
        found.blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        """Take a block from among the free ones."""
        self.free[block.stream].remove(block.key)

    def add_unmapped(self, block: Block) -> None:
        """Put a block among those without memory behind them."""
        block.state = UNMAPPED
        self.unmapped.setdefault(block.stream, Sorted()).add(block.address, block)

    def remove_unmapped(self, block: Block) -> None:
        """Take a block from among those without memory behind them."""
        self.unmapped[block.stream].remove(block.address)

    def free_blocks(self) -> Iterator[Block]:
        """A copy of the free blocks in search order, so that they may be taken meanwhile."""
        return iter([block for stream in sorted(self.free) for block in self.free[stream].blocks])


def split(block: Block, size: int) -> Block:
    """Cut the first `size` bytes off a block that is in no pool; the rest becomes free."""
    front = Block(block.address, size, block.pool, block.stream, block.state)
    front.range, front.rank = block.range, block.rank
    before = front.previous = block.previous
    if before is not None:
        before.next = front
    front.next = block
    block.previous = front
    block.address += size
    block.size -= size
    block.pool.add(block)
    return front


def merge(target: Block, neighbour: Block | None) -> int:
    """Join a free (or unmapped) block with a neighbour in the same state; the bytes that it gained.

    `target` must not be in its pool at that moment, and stays out of it.
    """
    if neighbour is None or neighbour.state != target.state:
        return 0
    pool = target.pool
    if neighbour.state == FREE:
        pool.remove(neighbour)
    else:
        pool.remove_unmapped(neighbour)
    if target.previous is neighbour:
        target.address = neighbour.address
        target.previous = neighbour.previous
        if target.previous is not None:
            target.previous.next = target
    else:
        target.next = neighbour.next
        if target.next is not None:
            target.next.previous = target
    target.size += neighbour.size
    return neighbour.size


def splice(block: Block, before: Block | None, after: Block | None) -> None:
    """Put a new block between two neighbours."""
    block.previous = before
    block.next = after
    if before is not None:
        before.next = block
    if after is not None:
        after.previous = block


_FIRST_INTERVAL = MIB.bit_length()


def round_size(size: int, divisions: tuple[int, ...]) -> int:
    """The size of the block for `size` bytes, with `roundup_power2_divisions` as in Settings.

    Up to the next of so many equal steps between two powers of two, where there are at least two
    and the steps are at least 512 bytes; otherwise up to a multiple of 512.
    """
    interval = min(max(size.bit_length() - _FIRST_INTERVAL, 0), INTERVALS - 1)
    count = divisions[interval]
    if size < MIN_BLOCK or count < 2 or size <= MIN_BLOCK * count or size & (size - 1) == 0:
        return max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)
    step = (1 << (size.bit_length() - 1)) // count
    return -(-size // step) * step


def best_fit(free: Sorted, index: int, size: int, settings: Settings) -> int:
    """The place in `free` of the block to use for `size` bytes, from `index` on; -1 for none.

    `index` is the first block that is large enough.
    """
    blocks = free.blocks
    if blocks[index].range is not None:
        if settings.expandable_segments:
            index = _least_growth(blocks, index)
        else:  # expandable segments were turned off: those that exist are left alone
            index = next((i for i in range(index, len(blocks)) if blocks[i].range is None), -1)
            if index < 0:
                return -1
    found, most = blocks[index].size, settings.max_split_size
    if size < most:  # an oversize block is never split, so it would be wasted on this
        return index if found < most else -1
    return index if found < size + settings.max_non_split_rounding else -1


def _least_growth(blocks: list[Block], index: int) -> int:
    """A block that can grow counts as large as it can grow: go on while the next one is smaller."""
    room = _room(blocks[index])
    while blocks[index].range is not None and index + 1 < len(blocks):
        following = _room(blocks[index + 1])
        if following >= room:
            break
        index, room = index + 1, following
    return index


def _room(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)
