"""The counters of the caching allocator, and torch.cuda.memory_stats() made of them.

PyTorch keeps current, peak and two running sums for every counter at every event. Here allocations raise
plain counts, and peaks are noted when the first block is freed after a rise: the same numbers, sooner.
"""

from __future__ import annotations

from collections.abc import Iterator


class Tally:
    """One counter that changes rarely: its level, the highest so far, and all that was ever added."""

    __slots__ = ("added", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.added = 0

    def change(self, amount: int) -> None:
        self.current += amount
        if amount > 0:
            self.added += amount
            if self.current > self.peak:
                self.peak = self.current


class Counts:
    """The counters of one pool or of both together.

    Blocks handed out: `blocks`, `allocated`. Waiting for another stream: `waiting`, `waiting_bytes`
    (with those handed out they are "active"). `requested`: unrounded bytes of the active ones.
    `*_added`: all that was ever added. Peaks are exact after `note_peaks`.
    """

    __slots__ = (
        "active_bytes_peak",
        "active_peak",
        "allocated",
        "allocated_added",
        "allocated_peak",
        "blocks",
        "blocks_added",
        "blocks_peak",
        "requested",
        "requested_added",
        "requested_peak",
        "reserved",
        "segments",
        "split_bytes",
        "splits",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.blocks = self.allocated = self.requested = self.waiting = self.waiting_bytes = 0
        self.blocks_added = self.allocated_added = self.requested_added = 0
        self.blocks_peak = self.allocated_peak = self.requested_peak = 0
        self.active_peak = self.active_bytes_peak = 0
        self.segments, self.reserved = Tally(), Tally()
        self.splits, self.split_bytes = Tally(), Tally()

    def take(self, size: int, requested: int) -> None:
        """Count a block that was handed out."""
        self.blocks += 1
        self.blocks_added += 1
        self.allocated += size
        self.allocated_added += size
        self.requested += requested
        self.requested_added += requested

    def note_peaks(self) -> None:
        """Must be called before anything falls that has risen."""
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        if self.blocks > self.blocks_peak:
            self.blocks_peak = self.blocks
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested
        self.active_peak = max(self.active_peak, self.blocks + self.waiting)
        self.active_bytes_peak = max(self.active_bytes_peak, self.allocated + self.waiting_bytes)

    def reset_peaks(self) -> None:
        self.blocks_peak, self.allocated_peak = self.blocks, self.allocated
        self.requested_peak = self.requested
        self.active_peak = self.blocks + self.waiting
        self.active_bytes_peak = self.allocated + self.waiting_bytes
        for tally in (self.segments, self.reserved, self.splits, self.split_bytes):
            tally.peak = tally.current

    def lines(self) -> Iterator[tuple[str, int, int, int]]:
        """Each counter under PyTorch's name: (name, current, peak, all that was ever added)."""
        self.note_peaks()
        active, active_bytes = self.blocks + self.waiting, self.allocated + self.waiting_bytes
        yield "allocation", self.blocks, self.blocks_peak, self.blocks_added
        yield "allocated_bytes", self.allocated, self.allocated_peak, self.allocated_added
        yield "active", active, self.active_peak, self.blocks_added
        yield "active_bytes", active_bytes, self.active_bytes_peak, self.allocated_added
        yield "requested_bytes", self.requested, self.requested_peak, self.requested_added
        yield from (
            (name, tally.current, tally.peak, tally.added)
            for name, tally in (
                ("segment", self.segments),
                ("reserved_bytes", self.reserved),
                ("inactive_split", self.splits),
                ("inactive_split_bytes", self.split_bytes),
            )
        )


class Statistics:
    """All counters of one device."""

    __slots__ = (
        "_resets",
        "all",
        "device_allocs",
        "device_frees",
        "large",
        "max_split_size",
        "ooms",
        "oversize_allocations",
        "oversize_segments",
        "retries",
        "small",
        "synchronizations",
    )

    def __init__(self, max_split_size: int = -1) -> None:
        self.all, self.small, self.large = Counts(), Counts(), Counts()
        self.oversize_allocations, self.oversize_segments = Tally(), Tally()
        self.max_split_size = max_split_size
        self._resets: dict[str, tuple[int, int]] = {}
        self.retries = self.ooms = self.synchronizations = 0
        self.device_allocs = self.device_frees = 0

    def note_peaks(self) -> None:
        self.all.note_peaks()
        self.small.note_peaks()
        self.large.note_peaks()

    def reset_peaks(self) -> None:
        for counts in (self.all, self.small, self.large):
            counts.reset_peaks()
        for tally in (self.oversize_allocations, self.oversize_segments):
            tally.peak = tally.current

    def reset_accumulated(self) -> None:
        self._resets = {name: (added, added - now) for name, now, _, added in self._lines()}
        self.retries = self.ooms = self.synchronizations = 0
        self.device_allocs = self.device_frees = 0

    def flat(self) -> dict[str, int]:
        """What torch.cuda.memory_stats() returns: the same keys in the same order."""
        stats = {
            "max_split_size": self.max_split_size,
            "num_alloc_retries": self.retries,
            "num_device_alloc": self.device_allocs,
            "num_device_free": self.device_frees,
            "num_ooms": self.ooms,
            "num_sync_all_streams": self.synchronizations,
        }
        for name, current, peak, added in self._lines():
            added_before, freed_before = self._resets.get(name, (0, 0))
            stats[f"{name}.allocated"] = added - added_before
            stats[f"{name}.current"] = current
            stats[f"{name}.freed"] = added - current - freed_before
            stats[f"{name}.peak"] = peak
        return dict(sorted(stats.items()))

    def _lines(self) -> Iterator[tuple[str, int, int, int]]:
        for kind, counts in (
            ("all", self.all),
            ("small_pool", self.small),
            ("large_pool", self.large),
        ):
            for name, *numbers in counts.lines():
                yield f"{name}.{kind}", *numbers
        for name, tally in (
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ):
            yield name, tally.current, tally.peak, tally.added
