"""A second allocator in the state of a first one, down to every block: what happens to one then
leaves the other as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from gpumem_magic.allocator.caching import CachingAllocator
from gpumem_magic.allocator.pools import Block

_REFERENCES = ("pool", "range", "streams")


def clone(allocator: CachingAllocator) -> CachingAllocator:
    """The clone has a device of its own, and nobody listens to it."""
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
            for name in _REFERENCES:
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
