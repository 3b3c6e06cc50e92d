"""What the allocator holds, as frozen values in PyTorch's words; and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpumem_magic.allocator.pools import ALLOCATED, UNMAPPED, WAITING, Block, Pool, splice
from gpumem_magic.allocator.statistics import Statistics

IN_USE, PENDING, INACTIVE = "active_allocated", "active_pending_free", "inactive"

_STATES = {ALLOCATED: IN_USE, WAITING: PENDING}

Plain = dict[str, Any]
"""A part of a snapshot as `torch.cuda.memory._snapshot()` has it."""


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block. state: active_allocated, active_pending_free or inactive (then `requested` is 0)."""

    address: int
    size: int
    requested: int
    state: str

    @property
    def used(self) -> bool:
        """Whether it may not be reused."""
        return self.state != INACTIVE

    @property
    def allocated(self) -> bool:
        """Whether it is owned."""
        return self.state == IN_USE


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, or a mapped part of an expandable one. pool: "small" or "large"; "" where that is
    not known."""

    address: int
    size: int
    expandable: bool
    blocks: tuple[BlockState, ...]
    stream: int = 0
    pool: str = ""


def take_snapshot(blocks: Iterable[Block]) -> list[Segment]:
    """The segments that `blocks`, all that have memory behind them, make up, by address."""
    heads = [b for b in blocks if b.previous is None or b.previous.state == UNMAPPED]
    return [_segment(head) for head in sorted(heads, key=lambda head: head.address)]


def _segment(head: Block) -> Segment:
    states: list[BlockState] = []
    block: Block | None = head
    while block is not None and block.state != UNMAPPED:
        state = _STATES.get(block.state, INACTIVE)
        requested = 0 if state == INACTIVE else block.requested
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


def with_gaps(blocks: Iterable[BlockState], start: int, end: int) -> Iterator[BlockState]:
    """The blocks from `start` to `end` and the free ones between them."""
    for block in blocks:
        if block.address > start:
            yield BlockState(start, block.address - start, 0, INACTIVE)
        yield block
        start = block.address + block.size
    if start < end:
        yield BlockState(start, end - start, 0, INACTIVE)


def plain_segment(
    segment: Segment, device: int, frames: list[Plain], of_block: Callable[[int], list[Plain]]
) -> Plain:
    """A segment as in a snapshot of PyTorch's (torch/csrc/cuda/Module.cpp). frames: of what asked
    for it; of_block: those of a block in use, by its address."""
    blocks = segment.blocks
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in blocks if block.used),
        "requested_size": sum(block.requested for block in blocks),
        "stream": segment.stream,
        "segment_type": segment.pool,
        "segment_pool_id": (0, 0),
        "is_expandable": segment.expandable,
        "frames": frames,
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": block.state,
                "frames": of_block(block.address) if block.used else [],
            }
            for block in blocks
        ],
    }


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
        if state.used:
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
