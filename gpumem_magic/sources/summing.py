"""Events of a long cell that are summed up: what they left is kept, and how high they went."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.values.recording import Action

LEFT_OUT = -512
"""Where the bytes are said to lie that were given back among the events summed up: nowhere."""

Row = tuple[int, int, int]
"""action, address, size"""


def sums_note(events: int) -> str:
    """What a report says of events that are summed up."""
    return (
        f"The first {events:,} events of this cell are summed up: what they left, and their peak, "
        "are exact; lines and passes count only what came after them, and what of theirs stayed."
    )


def outlast(action: NDArray[np.int8], address: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which events stay where lives that are over are left out: all but an allocation that the next
    event at its address frees, and that."""
    moves = np.flatnonzero((action == Action.ALLOC) | (action == Action.FREE))
    order = moves[np.argsort(address[moves], kind="stable")]
    births = np.flatnonzero(
        (address[order[1:]] == address[order[:-1]])
        & (action[order[:-1]] == Action.ALLOC)
        & (action[order[1:]] == Action.FREE)
    )
    kept = np.ones(len(action), bool)
    kept[order[births]] = kept[order[births + 1]] = False
    return kept


def changes_of(action: NDArray[np.int8], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """By how many bytes each event changed what is allocated."""
    sign = (action == Action.ALLOC).astype(np.int64) - (action == Action.FREE)
    return np.asarray(sign * size, np.int64)


def peak_missing(changes: NDArray[np.int64], kept: NDArray[np.bool_]) -> tuple[int, int] | None:
    """The event after which most was allocated, and by how many bytes the highest level of the kept
    events alone lies below that one at this place; None where they reach it."""
    whole = np.cumsum(changes)
    left = np.cumsum(np.where(kept, changes, 0))
    if not len(whole) or int(whole.max()) <= max(int(left.max()), 0):
        return None
    top = int(np.argmax(whole))
    return top, int(whole[top] - left[top])
