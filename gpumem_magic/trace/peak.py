"""What was alive at the peak and at the end, and how high the peak was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.levels import Levels
from gpumem_magic.trace.owners import CATEGORIES, Owners
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.values.findings import Block, Level
from gpumem_magic.values.recording import Category, Label, Reading, Recording

_BLOCKS_KEPT = 1000  # a list that grows in a loop is seen whole, and saved in some 100 KB


def find_peak(recording: Recording, levels: Levels) -> Level:
    """The highest of each level over the cell, the start included.

    device_used: what PyTorch held at its peak and, as far as the readings know, what everything
    else on the device took at most.
    """
    reserved = int(levels.reserved.max()) if levels.reserved_known else None
    rest = [_not_pytorch(reading) for reading in (recording.before, recording.after)]
    most = max((size for size in rest if size is not None), default=None)
    used = None if reserved is None or most is None else reserved + most
    if used is not None and recording.device.total > 0:
        used = min(used, recording.device.total)
    return Level(int(levels.allocated.max()), reserved, used)


def _not_pytorch(reading: Reading) -> int | None:
    if reading.device_used is None or reading.reserved is None:
        return None
    return max(reading.device_used - reading.reserved, 0)


def by_category(timeline_row: NDArray[np.int64]) -> Mapping[Category, int]:
    """Bytes of each category that has any, in the order of Category."""
    return {
        category: int(size) for category, size in zip(CATEGORIES, timeline_row, strict=True) if size
    }


@dataclass(frozen=True, slots=True)
class KnownBlocks:
    """What the stages of a trace know of every block.

    lives: when it lived. owners: who owned it. kind: int8, its place in owners.CATEGORIES.
    attribution: who ran at each event.
    """

    lives: Pairing
    owners: Owners
    kind: NDArray[np.int8]
    attribution: Attribution


def find_blocks(recording: Recording, known: KnownBlocks, event: int) -> tuple[Block, ...]:
    """The largest blocks alive right after `event`; the older first among equals."""
    alive = known.lives.alive(event)
    largest = alive[np.argsort(-known.lives.size[alive], kind="stable")][:_BLOCKS_KEPT]
    return tuple(_block(int(block), recording.labels, known) for block in largest)


def _block(block: int, labels: tuple[Label, ...], known: KnownBlocks) -> Block:
    lives, owners = known.lives, known.owners
    birth, naming, shaping = lives.birth[block], owners.naming[block], owners.shaping[block]
    return Block(
        name=labels[naming].name if naming >= 0 else None,
        size=int(lives.size[block]),
        shape=labels[shaping].shape if shaping >= 0 else None,
        dtype=labels[shaping].dtype if shaping >= 0 else None,
        category=CATEGORIES[known.kind[block]],
        line=int(known.attribution.line[birth]) if birth >= 0 else None,
    )
