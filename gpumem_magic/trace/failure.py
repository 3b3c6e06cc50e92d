"""Why an allocation failed, and whether the memory that lay free was merely in too small pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Action, Events, Failure, Recording
from gpumem_magic.trace.findings import OutOfMemory
from gpumem_magic.trace.levels import Levels
from gpumem_magic.trace.lives import Lives
from gpumem_magic.trace.stacks import Stacks

_BLOCK = 512  # kMinBlockSize: the allocator hands out multiples of it (c10/core/AllocatorConfig.h)


def explain_failure(
    recording: Recording,
    failure: Failure,
    stacks: Stacks,
    levels: Levels,
    lives: Lives,
) -> OutOfMemory:
    """What the failure and the events before it say of the memory that was wanted."""
    free, largest = _free_memory(recording, failure, levels, lives)
    line = int(stacks.line[failure.stack])
    return OutOfMemory(
        requested=failure.requested,
        segment=failure.segment,
        device_free=failure.device_free,
        reserved_free=free,
        largest_free=largest,
        fragmented=_fragmented(failure.requested, free, largest),
        line=line or None,
        op=failure.op,
        message=failure.message,
    )


def _fragmented(requested: int, free: int | None, largest: int | None) -> bool | None:
    needed = -(-requested // _BLOCK) * _BLOCK
    if free is not None and free < needed:
        return False
    return None if free is None or largest is None else largest < needed


def _free_memory(
    recording: Recording, failure: Failure, levels: Levels, lives: Lives
) -> tuple[int | None, int | None]:
    """Bytes free inside reserved memory and the largest piece: told by the source, or derived."""
    free, largest = failure.reserved_free, failure.largest_free
    known = recording.complete and levels.reserved_known
    if free is None and known:
        free = int(levels.reserved[failure.position] - levels.allocated[failure.position])
    pages = bool((recording.events.action == Action.SEGMENT_MAP).any())  # of expandable segments
    if largest is None and known and not pages and levels.reserved[0] == 0:  # all events are here
        largest = _largest_gap(recording.events, lives, failure.position)
    return free, largest


def _largest_gap(events: Events, lives: Lives, position: int) -> int:
    """The longest stretch of a segment that no living block covers, before event `position`."""
    begins, ends = _segments(events, position)
    alive = lives.alive(position - 1)
    order = np.argsort(lives.address[alive])
    address = lives.address[alive][order]
    # Taken bytes split each segment; its own edges count as taken bytes of no length.
    taken_from = np.concatenate([begins, ends, address])
    taken_to = np.concatenate([begins, ends, address + lives.size[alive][order]])
    order = np.lexsort((taken_to, taken_from))
    gaps = taken_from[order][1:] - taken_to[order][:-1]
    inside = np.searchsorted(begins, taken_to[order][:-1], side="right") - 1
    within = (inside >= 0) & (taken_from[order][1:] <= np.append(ends, -1)[inside])
    return int(gaps[within].max(initial=0))


def _segments(events: Events, position: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each segment held before event `position` begins and ends, in order of address."""
    held: dict[int, int] = {}
    changes = np.isin(events.action[:position], (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    for i in np.flatnonzero(changes).tolist():
        address = int(events.address[i])
        if events.action[i] == Action.SEGMENT_ALLOC:
            held[address] = address + int(events.size[i])
        else:
            held.pop(address, None)
    begins = sorted(held)
    return np.array(begins, np.int64), np.array([held[begin] for begin in begins], np.int64)
