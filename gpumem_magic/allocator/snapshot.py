"""What the allocator holds, as frozen values in PyTorch's words; and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpumem_magic.allocator.pools import ALLOCATED, UNMAPPED, WAITING, Block, Pool, splice
from gpumem_magic.allocator.statistics import Statistics

_STATES = {ALLOCATED: "active_allocated", WAITING: "active_pending_free"}


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block. state: active_allocated, active_pending_free or inactive (then `requested` is 0)."""

    address: int
    size: int
    requested: int
    state: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, or a mapped part of an expandable one. pool: "small" or "large"."""

    address: int
    size: int
    stream: int
    pool: str
    expandable: bool
    blocks: tuple[BlockState, ...]


def take_snapshot(blocks: Iterable[Block]) -> list[Segment]:
    """The segments that `blocks`, all that have memory behind them, make up, by address."""
    heads = [b for b in blocks if b.previous is None or b.previous.state == UNMAPPED]
    return [_segment(head) for head in sorted(heads, key=lambda head: head.address)]


def _segment(head: Block) -> Segment:
    states: list[BlockState] = []
    block: Block | None = head
    while block is not None and block.state != UNMAPPED:
        state = _STATES.get(block.state, "inactive")
        requested = 0 if state == "inactive" else block.requested
        states.append(BlockState(block.address, block.size, requested, state))
        block = block.next
    return Segment(
        address=head.address,
        size=sum(state.size for state in states),
        stream=head.stream,
        pool="small" if head.pool.small else "large",
        expandable=head.range is not None,
        blocks=tuple(states),
    )


def rebuild(segment: Segment, pool: Pool, statistics: Statistics) -> Iterator[Block]:
    """Put a plain segment's blocks into the pool and the books; yields those that are allocated.

    Raises ValueError for an expandable segment: what its range can grow to is not in a snapshot.
    """
    if segment.expandable:
        raise ValueError("an expandable segment cannot be rebuilt from a snapshot")
    before: Block | None = None
    for state in segment.blocks:
        block = Block(state.address, state.size, pool, segment.stream, ALLOCATED)
        splice(block, before, None)
        before = block
        allocated = state.state != "inactive"
        if allocated:
            statistics.take(pool.counts, state.size, state.requested)
            block.requested = state.requested
            yield block
        else:
            pool.add(block)
            if len(segment.blocks) > 1:
                statistics.split(pool.counts, state.size, 1)
    for counts in (pool.counts, statistics.all):
        counts.segments.change(1)
        counts.reserved.change(segment.size)
