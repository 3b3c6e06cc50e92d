"""Where in reserved memory there is room: the gaps between living blocks, as far as known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.levels import Levels
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.values.recording import Action, Events, Recording


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
    return _segments(older, events, position)


def _segments(older: NDArray[np.int64], events: Events, position: int) -> HeldSegments:
    held = {address: address + size for address, size, _ in older.tolist()}
    changes = np.isin(events.action[:position], (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    for i in np.flatnonzero(changes).tolist():
        address = int(events.address[i])
        if events.action[i] == Action.SEGMENT_ALLOC:
            held[address] = address + int(events.size[i])
        else:
            held.pop(address, None)
    begins = sorted(held)
    return HeldSegments(
        np.array(begins, np.int64), np.array([held[begin] for begin in begins], np.int64)
    )
