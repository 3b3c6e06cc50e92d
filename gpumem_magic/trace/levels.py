"""How many bytes were allocated and reserved after each event, and how they changed; the cell's
history of them by category, in few enough points to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.owners import CODE
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.units import format_change
from gpumem_magic.values.findings import Level, Timeline
from gpumem_magic.values.recording import Action, Category, Events, Recording


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
    allocated = np.cumsum(recording.events.allocated_changes())
    reserved = np.cumsum(recording.events.reserved_changes())
    start = _start(before.allocated, after.allocated, allocated)
    if start is None:
        start = int(recording.initial.size.sum())
    held = _start(before.reserved, after.reserved, reserved)
    return Levels(_from(start, allocated), _from(held or 0, reserved), held is not None)


def _start(before: int | None, after: int | None, changes: NDArray[np.int64]) -> int | None:
    """The level before the first event, given running totals of the changes."""
    if before is not None or after is None:
        return before
    return after - int(changes[-1]) if len(changes) else after


def _from(start: int, changes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.array([start], np.int64), start + changes])


_NEED_EVENTS = ("peak.allocated", "peak.reserved", "peak.device_used")

_BUILT_FROM_EVENTS = ("lines", "blocks", "at_peak", "at_end", "timeline")


def name_losses(recording: Recording) -> Mapping[str, str]:
    """All that is unknown where events are missing."""
    reason = "PyTorch recorded none of the cell's events"
    if recording.dropped:
        lost = f"{recording.dropped:,} events were lost"
        reason = f"{lost}: the cell made more than the recording holds"
    return dict.fromkeys((*_NEED_EVENTS, *_BUILT_FROM_EVENTS), reason)


def name_gaps(recording: Recording, levels: Levels, peak: Level) -> Mapping[str, str]:
    """What is unknown although all events are there."""
    unknown = {}
    before, after = recording.before, recording.after
    if peak.reserved is None:
        reason = before.unknown.get("reserved") or after.unknown.get("reserved")
        unknown["peak.reserved"] = reason or "what was reserved was read neither before nor after"
        unknown["timeline.reserved"] = unknown["peak.reserved"]
    if peak.device_used is None:
        reason = before.unknown.get("device_used") or after.unknown.get("device_used")
        unknown["peak.device_used"] = reason or unknown.get(
            "peak.reserved", "what else uses the device was read neither before nor after"
        )
    missing = (after.allocated or 0) - int(levels.allocated[-1])
    if after.allocated is not None and missing:
        unknown["lines"] = f"{format_change(missing)} happened without an event"
    return unknown


@dataclass(frozen=True, slots=True)
class HeldSegments:
    """The segments held at one moment: int64 columns of where each begins and ends, in order."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def largest_gap(self, lives: Pairing, alive: NDArray[np.int64]) -> int:
        """The longest stretch of a segment that none of the `alive` blocks covers, in bytes."""
        order = np.argsort(lives.address[alive])
        address = lives.address[alive][order]
        # Taken bytes split each segment; its own edges count as taken bytes of no length.
        taken_from = np.concatenate([self.begins, self.ends, address])
        taken_to = np.concatenate([self.begins, self.ends, address + lives.size[alive][order]])
        order = np.lexsort((taken_to, taken_from))
        gaps = taken_from[order][1:] - taken_to[order][:-1]
        inside = np.searchsorted(self.begins, taken_to[order][:-1], side="right") - 1
        within = (inside >= 0) & (taken_from[order][1:] <= np.append(self.ends, -1)[inside])
        return int(gaps[within].max(initial=0))

    def empty(self, lives: Pairing, alive: NDArray[np.int64]) -> int:
        """Bytes of the segments in which none of the `alive` blocks lies."""
        taken = np.searchsorted(self.begins, lives.address[alive], side="right") - 1
        sizes = self.ends - self.begins
        sizes[np.unique(taken[taken >= 0])] = 0
        return int(sizes.sum())


def find_held_segments(recording: Recording, levels: Levels, position: int) -> HeldSegments | None:
    """The segments before event `position`; None where some are older than the recording, or where
    segments are expandable."""
    events = recording.events
    pages = bool((events.action == Action.SEGMENT_MAP).any())
    older = recording.initial.segments
    if older is None and levels.reserved_known and levels.reserved[0] == 0:
        older = np.zeros((0, 3), np.int64)
    if older is None or older[:, 2].any() or pages or not recording.complete:
        return None
    held = follow_segments(older, events, position)
    begins = np.array(sorted(held), np.int64)
    sizes = np.array([held[begin][0] for begin in begins.tolist()], np.int64)
    return HeldSegments(begins, begins + sizes)


def follow_segments(
    older: NDArray[np.int64], events: Events, position: int | None = None
) -> dict[int, tuple[int, int]]:
    """The segments of fixed size before event `position`, by default at the end: by address their
    size, and the stack of what asked for them, -1 of the older ones."""
    held = {at: (size, -1) for at, size, expandable in older.tolist() if not expandable}
    changes = np.isin(events.action[:position], (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    for i in np.flatnonzero(changes).tolist():
        address = int(events.address[i])
        if events.action[i] == Action.SEGMENT_ALLOC:
            held[address] = int(events.size[i]), int(events.stack[i])
        else:
            held.pop(address, None)
    return held


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
    changes = recording.events.allocated_changes()
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
