"""How many bytes were allocated and reserved after each event, and how they changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Action, Events, Recording


@dataclass(frozen=True, slots=True)
class Levels:
    """int64 bytes at n + 1 moments: before the first event, then after each of the n events.

    reserved_known: whether `reserved` counts from a known level, and not from zero.
    """

    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    reserved_known: bool


def find_levels(recording: Recording) -> Levels:
    """Follow both levels from the reading before the cell, or back from the one after it.

    Where neither reading knows what is allocated, the initial blocks do.
    """
    before, after = recording.before, recording.after
    allocated = np.cumsum(allocated_changes(recording.events))
    reserved = np.cumsum(reserved_changes(recording.events))
    start = _start(before.allocated, after.allocated, allocated)
    if start is None:
        start = int(recording.initial.size.sum())
    held = _start(before.reserved, after.reserved, reserved)
    return Levels(_from(start, allocated), _from(held or 0, reserved), held is not None)


def allocated_changes(events: Events) -> NDArray[np.int64]:
    """By how many bytes each event changed what is allocated."""
    return _changes(events, (Action.ALLOC,), (Action.FREE,))


def reserved_changes(events: Events) -> NDArray[np.int64]:
    """By how many bytes each event changed what the allocator holds of the device."""
    grows = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    return _changes(events, grows, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))


def _changes(
    events: Events, grows: tuple[Action, ...], shrinks: tuple[Action, ...]
) -> NDArray[np.int64]:
    sign = np.zeros(max(Action) + 1, np.int64)
    sign[list(grows)], sign[list(shrinks)] = 1, -1
    return sign[events.action] * events.size


def _start(before: int | None, after: int | None, changes: NDArray[np.int64]) -> int | None:
    """The level before the first event, given running totals of the changes."""
    if before is not None or after is None:
        return before
    return after - int(changes[-1]) if len(changes) else after


def _from(start: int, changes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.array([start], np.int64), start + changes])
