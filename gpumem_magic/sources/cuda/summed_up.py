"""The first events of a cell, of which PyTorch's memory history had no room: what they came to, as
a few events in front of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.allocator.snapshot import Segment
from gpumem_magic.sources.cuda.device import Counters
from gpumem_magic.sources.cuda.history import Columns
from gpumem_magic.sources.summing import LEFT_OUT
from gpumem_magic.values.recording import Action, Events

_Number = TypeVar("_Number", bound=np.generic)

Row = tuple[Action, int, int, int]
"""action, address, size, requested"""

_CHANGES = (
    (Action.ALLOC, Action.FREE),
    (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE),
    (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP),
)


@dataclass(frozen=True, slots=True)
class Peaks:
    """How high a cell went, allocated and reserved, in bytes."""

    allocated: int
    reserved: int


def find_peaks(
    before: Counters, after: Counters, begin: Sequence[Segment], events: Events
) -> Peaks | None:
    """The peaks of a whole cell, of whose events only the last are known, which began where
    `begin` says; None where PyTorch's counters do not tell: they never fall, so an earlier cell may
    have been as high as they stand."""
    allocated = _owned(begin) + _highest(events, _CHANGES[:1])
    reserved = sum(segment.size for segment in begin) + _highest(events, _CHANGES[1:])
    if after.peak <= before.peak and allocated != after.peak:
        return None
    if after.reserved_peak <= before.reserved_peak and reserved != after.reserved_peak:
        return None
    return Peaks(after.peak, after.reserved_peak)


def with_sums(
    columns: Columns, before: Sequence[Segment], begin: Sequence[Segment], peaks: Peaks
) -> tuple[Columns, int]:
    """The columns with what led from the segments `before` the cell to those with which they
    `begin` in front, and how many rows that takes.

    What was higher than they show stands there as a block, and a segment, that come and go.
    """
    rows = [*_between(before, begin)]
    level = _owned(before) + sum(size for action, _, size, _ in rows if action == Action.ALLOC)
    held = sum(segment.size for segment in begin)
    freed = [row for row in rows if row[0] == Action.FREE]
    level -= sum(size for _, _, size, _ in freed)
    known = columns.events
    if peaks.allocated > level + _highest(known, _CHANGES[:1]):
        rows += _come_and_go(_CHANGES[0], peaks.allocated - level)
    if peaks.reserved > held + _highest(known, _CHANGES[1:]):
        rows += _come_and_go(_CHANGES[1], peaks.reserved - held)
    return replace(columns, events=_joined(rows, known)), len(rows)


def _come_and_go(actions: tuple[Action, Action], size: int) -> list[Row]:
    return [(action, LEFT_OUT, size, size) for action in actions]


def _between(before: Sequence[Segment], begin: Sequence[Segment]) -> Iterator[Row]:
    """What turns the one state into the other: blocks go before segments, and come after them."""
    old, new = _blocks(before), _blocks(begin)
    for address in old:
        if new.get(address) != old[address]:
            yield Action.FREE, address, *old[address]
    yield from _resized(before, begin)
    for address in new:
        if new[address] != old.get(address):
            yield Action.ALLOC, address, *new[address]


def _resized(before: Sequence[Segment], begin: Sequence[Segment]) -> Iterator[Row]:
    old = {(s.address, s.size): s.expandable for s in before}
    new = {(s.address, s.size): s.expandable for s in begin}
    for address, size in old.keys() - new.keys():
        gone = Action.SEGMENT_UNMAP if old[address, size] else Action.SEGMENT_FREE
        yield gone, address, size, size
    for address, size in new.keys() - old.keys():
        come = Action.SEGMENT_MAP if new[address, size] else Action.SEGMENT_ALLOC
        yield come, address, size, size


def _blocks(segments: Iterable[Segment]) -> dict[int, tuple[int, int]]:
    """Size and request of the blocks that someone owns, by address."""
    blocks = (block for segment in segments for block in segment.blocks if block.allocated)
    return {block.address: (block.size, block.requested) for block in blocks}


def _owned(segments: Iterable[Segment]) -> int:
    return sum(size for size, _ in _blocks(segments).values())


def _highest(events: Events, pairs: Iterable[tuple[Action, Action]]) -> int:
    """How far a level rose above where it began, at most."""
    sign = np.zeros(max(Action) + 1, np.int64)
    for grows, shrinks in pairs:
        sign[grows], sign[shrinks] = 1, -1
    return int(np.cumsum(sign[events.action] * events.size).max(initial=0))


def _joined(rows: Sequence[Row], events: Events) -> Events:
    action, address, size, requested = np.array(rows, np.int64).reshape(-1, 4).T

    def column(first: NDArray[np.int64] | int, known: NDArray[_Number]) -> NDArray[_Number]:
        front = np.broadcast_to(first, len(rows)).astype(known.dtype)
        return np.concatenate([front, known])

    return Events(
        action=column(action, events.action),
        address=column(address, events.address),
        size=column(size, events.size),
        requested=column(requested, events.requested),
        stack=column(-1, events.stack),
        phase=column(0, events.phase),
        time=column(0, events.time),
    )
