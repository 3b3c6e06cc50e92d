"""How the blocks of a device lay when its history began, from how they lay when it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from gpumem_magic.allocator.pools import SMALL_SIZE
from gpumem_magic.allocator.snapshot import IN_USE, PENDING, BlockState, Segment, with_gaps
from gpumem_magic.sources.cuda.block_sizes import round_size
from gpumem_magic.sources.cuda.history import EntryColumns
from gpumem_magic.values.recording import Action, Rules


def rewind(entries: EntryColumns, segments: Iterable[Segment], rules: Rules) -> list[Segment]:
    """The segments before the first of the entries, which ended with `segments`.

    A block that was there before and is gone since has the size that its request is rounded to, and
    what lies free behind it where the allocator would not have split that off.
    """
    state = _State(segments, rules)
    columns = (entries.actions, entries.addresses, entries.requested)
    state.undo(zip(*map(reversed, columns), strict=True))
    return state.segments()


class _State:
    def __init__(self, segments: Iterable[Segment], rules: Rules) -> None:
        self._rules = rules
        self._fixed: dict[int, int] = {}
        self._mapped = _Ranges()
        self._blocks: dict[int, BlockState] = {}
        for segment in segments:
            if segment.expandable:
                self._mapped.add(segment.address, segment.address + segment.size)
            else:
                self._fixed[segment.address] = segment.size
            self._blocks |= {block.address: block for block in segment.blocks if block.used}

    def undo(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Go back over (action, address, size), the latest first."""
        # In plain numbers: of millions of blocks only those that are left become blocks again.
        alloc, free, completed = map(int, (Action.ALLOC, Action.FREE, Action.FREE_COMPLETED))
        freed: dict[int, tuple[int, bool]] = {}
        whole = {address: block.size for address, block in self._blocks.items()}
        for action, address, size in entries:
            if action == alloc:
                freed.pop(address, None)
                whole.pop(address, None)
            elif action in (free, completed):
                freed[address] = size, action == free
            else:
                self._resize(action, address, size)
        self._blocks = {at: block for at, block in self._blocks.items() if at in whole}
        for at, (size, owned) in freed.items():
            known = whole.get(at) or round_size(size, self._rules)
            self._blocks[at] = BlockState(at, known, size, IN_USE if owned else PENDING)

    def _resize(self, action: int, address: int, size: int) -> None:
        if action == Action.SEGMENT_ALLOC:
            self._fixed.pop(address, None)
        elif action == Action.SEGMENT_FREE:
            self._fixed[address] = size
        elif action == Action.SEGMENT_MAP:
            self._mapped.remove(address, address + size)
        elif action == Action.SEGMENT_UNMAP:
            self._mapped.add(address, address + size)

    def segments(self) -> list[Segment]:
        blocks = sorted(self._blocks.values(), key=lambda block: block.address)
        held = [(start, start + size, False) for start, size in self._fixed.items()]
        held += [(start, end, True) for start, end in self._mapped.pairs]
        found, index = [], 0
        for start, end, expandable in sorted(held):
            inside = []
            while index < len(blocks) and blocks[index].address < end:
                if blocks[index].address >= start:
                    inside.append(blocks[index])
                index += 1
            if not expandable:
                inside = [*self._whole(inside, end)]
            blocks_and_gaps = tuple(with_gaps(inside, start, end))
            found.append(Segment(start, end - start, expandable, blocks_and_gaps))
        return found

    def _whole(self, blocks: list[BlockState], end: int) -> Iterator[BlockState]:
        """The blocks of a segment of fixed size with the slack that was never split off them.

        A free block of the large pool has more than 1 MiB: neither splitting nor a request makes a
        smaller one (c10/cuda/CUDACachingAllocator.cpp, should_split).
        """
        limit = self._rules.max_split_size
        ends = [*(block.address for block in blocks), end][1:]
        for block, after in zip(blocks, ends, strict=True):
            slack = after - block.address - block.size
            whole = slack <= SMALL_SIZE or (limit is not None and block.size >= limit)
            large = block.size > SMALL_SIZE
            yield replace(block, size=block.size + slack) if large and whole else block


class _Ranges:
    """Ranges of addresses that neither overlap nor touch, in order."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        apart = []
        for low, high in self.pairs:
            if high < start or low > end:
                apart.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        self.pairs = sorted([*apart, (start, end)])

    def remove(self, start: int, end: int) -> None:
        left: list[tuple[int, int]] = []
        for low, high in self.pairs:
            pieces: Any = ((low, min(high, start)), (max(low, end), high))
            left += [(a, b) for a, b in pieces if a < b]
        self.pairs = left
