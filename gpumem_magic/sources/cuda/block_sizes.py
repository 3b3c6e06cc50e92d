"""Recover whole block sizes: the allocator's history names what was requested, its counters count
whole blocks. Splitting and merging are replayed at the addresses that the history gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpumem_magic.allocator import pools
from gpumem_magic.allocator.pools import MIN_BLOCK, SMALL_SIZE
from gpumem_magic.allocator.snapshot import Segment
from gpumem_magic.values.recording import Action, Rules


def round_size(requested: int, rules: Rules) -> int:
    """Bytes that the allocator looks for when `requested` bytes are asked for."""
    return pools.round_size(requested, rules.divisions)


class _FreeRanges:
    """Free blocks by both of their ends, so that neighbours merge in constant time."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}  # by end
        self._fences: set[int] = set()  # where a segment begins: never merge across

    @property
    def total(self) -> int:
        return sum(self._sizes.values())

    @property
    def largest(self) -> int:
        return max(self._sizes.values(), default=0)

    def fence(self, address: int) -> None:
        self._fences.add(address)

    def add(self, address: int, size: int) -> None:
        self.take(address)  # a history that contradicts itself frees what is free
        end = address + size
        if end in self._sizes and end not in self._fences:
            size += self._sizes.pop(end)
        if address in self._starts and address not in self._fences:
            address = self._starts.pop(address)
            size += self._sizes[address]
        self._sizes[address] = size
        self._starts[address + size] = address

    def take(self, address: int) -> int | None:
        """Remove the free block at `address` and give its size; None when there is none."""
        size = self._sizes.pop(address, None)
        if size is not None:
            self._starts.pop(address + size, None)
        return size

    def cut(self, address: int, size: int) -> None:
        """Remove a range from the free block that holds it; what is left on its sides stays."""
        for start, length in self._sizes.items():
            if start <= address and address + size <= start + length:
                break
        else:
            return
        self.take(start)
        if address > start:
            self.add(start, address - start)
        if start + length > address + size:
            self.add(address + size, start + length - address - size)

    def drop(self, address: int) -> None:
        """Forget a segment that went back to the device."""
        self.take(address)
        self._fences.discard(address)


class BlockReplay:
    """Follows the blocks of one device from a known state.

    misses: events that did not fit what was known. free_at_oom: bytes that lay free in reserved
    memory when an allocation last failed for good, and the largest piece of them; None if none did.
    """

    def __init__(self, segments: Iterable[Segment], rules: Rules) -> None:
        self.misses = 0
        self.free_at_oom: tuple[int, int] | None = None
        self._rules = rules
        self._free = _FreeRanges()
        self._used: dict[int, int] = {}
        self._allocated: dict[int, int] = {}
        self._expandable: list[tuple[int, int]] = []
        self._rounded: dict[int, int] = {}
        for segment in segments:
            self._adopt(segment)

    @property
    def allocated(self) -> int:
        """Bytes that are owned now."""
        return sum(self._allocated.values())

    @property
    def alive(self) -> frozenset[int]:
        """Addresses of the blocks that are owned now."""
        return frozenset(self._allocated)

    def sizes(
        self, actions: Sequence[int], addresses: Sequence[int], requested: Sequence[int]
    ) -> Iterator[int]:
        """The bytes by which each event changes its counter, one for each event, in order."""
        alloc, free, completed = map(int, (Action.ALLOC, Action.FREE, Action.FREE_COMPLETED))
        for action, address, size in zip(actions, addresses, requested, strict=True):
            if action == alloc:  # plain numbers: there may be millions
                yield self._alloc(address, size)
            elif action == free:
                yield self._release(address)
            elif action == completed:
                yield self._complete(address)
            else:
                self._resize(action, address, size)
                yield size

    def _adopt(self, segment: Segment) -> None:
        if segment.expandable:
            self._expandable.append((segment.address, segment.address + segment.size))
        else:
            self._free.fence(segment.address)
        for block in segment.blocks:
            if block.used:
                self._used[block.address] = block.size
            else:
                self._free.add(block.address, block.size)
            if block.allocated:
                self._allocated[block.address] = block.size

    def _alloc(self, address: int, requested: int) -> int:
        rounded = self._rounded.get(requested)  # a model asks for few different sizes
        if rounded is None:
            rounded = self._rounded[requested] = round_size(requested, self._rules)
        found = self._free.take(address)
        size = rounded
        if found is None or found < rounded:
            self.misses += 1
        elif self._splits(address, rounded, found - rounded):
            self._free.add(address + rounded, found - rounded)
        else:
            size = found
        self._used[address] = self._allocated[address] = size
        return size

    def _splits(self, address: int, rounded: int, remaining: int) -> bool:
        if rounded <= SMALL_SIZE or self._is_expandable(address):
            return remaining >= MIN_BLOCK
        limit = self._rules.max_split_size
        return remaining > SMALL_SIZE and (limit is None or rounded < limit)

    def _is_expandable(self, address: int) -> bool:
        return any(start <= address < end for start, end in self._expandable)

    def _release(self, address: int) -> int:
        size = self._allocated.pop(address, None)
        self.misses += size is None
        return size or 0  # what nobody owns is not released again

    def _complete(self, address: int) -> int:
        size = self._used.pop(address, None)
        if size is None:
            self.misses += 1
            return 0
        self._free.add(address, size)
        return size

    def _resize(self, action: int, address: int, size: int) -> None:
        if action == Action.SEGMENT_ALLOC:
            self._free.fence(address)
            self._free.add(address, size)
        elif action == Action.SEGMENT_FREE:
            self._free.drop(address)
        elif action == Action.SEGMENT_MAP:
            self._map(address, size)
        elif action == Action.SEGMENT_UNMAP:
            self._free.cut(address, size)
        elif action == Action.OOM:
            self.free_at_oom = self._free.total, self._free.largest

    def _map(self, address: int, size: int) -> None:
        for index, (start, end) in enumerate(self._expandable):
            if start <= address <= end:
                self._expandable[index] = (start, max(end, address + size))
                break
        else:
            self._expandable.append((address, address + size))
        self._free.add(address, size)
