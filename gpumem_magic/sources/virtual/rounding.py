"""The sizes that blocks are rounded to."""

from __future__ import annotations

from gpumem_magic.sources.virtual.pools import MIN_BLOCK
from gpumem_magic.sources.virtual.settings import INTERVALS
from gpumem_magic.units import MIB

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
