"""Best fit under the settings that change it: expandable segments and max_split_size."""

from __future__ import annotations

from gpumem_magic.sources.virtual.pools import UNMAPPED, Block, Sorted
from gpumem_magic.sources.virtual.settings import Settings


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
