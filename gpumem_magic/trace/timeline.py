"""The cell's history by category, in few enough points to draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.levels import Levels, allocated_changes
from gpumem_magic.trace.owners import CODE
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.values.findings import Timeline
from gpumem_magic.values.recording import Category, Recording

_POINTS = 2000


def find_timeline(
    recording: Recording,
    attribution: Attribution,
    levels: Levels,
    lives: Pairing,
    kind: NDArray[np.int8],
    moments: NDArray[np.int64],
) -> Timeline:
    """The history at some of the n + 1 moments of `levels`."""
    allocated = levels.allocated[moments]
    return Timeline(
        time=np.append(0.0, recording.events.time)[moments],
        allocated=allocated,
        reserved=levels.reserved[moments],
        line=np.append(np.int32(0), attribution.line)[moments],
        by_category=_by_category(recording, levels, lives, kind, moments),
        peak=int(np.argmax(allocated)),
    )


NO_TIMELINE = Timeline(
    *(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32)),
    by_category=np.zeros((0, len(Category)), np.int64),
    peak=-1,
)
"""The history of a cell of which too much is unknown, or is kept no more."""


def choose_moments(levels: Levels, *wanted: int) -> NDArray[np.int64]:
    """Which of the n + 1 moments to keep, at most 2000: start, peak, end, those wanted.

    Also, of every stretch, the lowest and highest of `allocated` and the highest of `reserved`.
    """
    count = len(levels.allocated)
    if count <= _POINTS:
        return np.arange(count)
    edges = np.linspace(0, count, (_POINTS - 3 - len(wanted)) // 3 + 1).astype(np.int64)
    kept = {0, int(np.argmax(levels.allocated)), count - 1, *wanted}
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        allocated = levels.allocated[begin:end]
        kept.add(begin + int(allocated.argmin()))
        kept.add(begin + int(allocated.argmax()))
        kept.add(begin + int(levels.reserved[begin:end].argmax()))
    return np.array(sorted(kept), np.int64)


def _by_category(
    recording: Recording,
    levels: Levels,
    lives: Pairing,
    kind: NDArray[np.int8],
    moments: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Bytes at each moment by category; what nobody saw being born is OTHER, so rows add up."""
    other = CODE[Category.OTHER]
    changes = allocated_changes(recording.events)
    changed = np.flatnonzero(changes)
    block = lives.of_event[changed]
    category = np.where(block >= 0, kind[block] if len(kind) else other, other).astype(np.int64)
    table = np.zeros((len(moments), len(Category)), np.int64)
    old = np.flatnonzero(lives.birth < 0)
    np.add.at(table[0], kind[old], lives.size[old])
    table[0, other] += levels.allocated[0] - table[0].sum()
    point = np.searchsorted(moments, changed + 1)
    np.add.at(table.reshape(-1), point * len(Category) + category, changes[changed])
    return np.cumsum(table, axis=0)
