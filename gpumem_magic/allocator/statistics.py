"""The counters of the caching allocator, and torch.cuda.memory_stats() made of them.

PyTorch updates current, peak and two running sums of every counter at every event. Here allocations
raise plain counts, and peaks are noted when something falls after a rise: the same numbers, faster.
"""

from __future__ import annotations

from collections.abc import Iterator


class Tally:
    """One counter: its level, the highest level so far, and all that was ever added."""

    __slots__ = ("added", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.added = 0

    def change(self, amount: int) -> None:
        """Add to the level, or take away."""
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

    def note_peaks(self) -> None:
        """Must be called before anything falls that has risen."""
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        if self.blocks > self.blocks_peak:
            self.blocks_peak = self.blocks
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested
        if self.blocks + self.waiting > self.active_peak:
            self.active_peak = self.blocks + self.waiting
        if self.allocated + self.waiting_bytes > self.active_bytes_peak:
            self.active_bytes_peak = self.allocated + self.waiting_bytes

    def reset_peaks(self) -> None:
        """Let every peak be the level now."""
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

    def take(self, counts: Counts, size: int, requested: int) -> None:
        """Count a block of the pool of `counts` that was handed out."""
        everything = self.all
        counts.blocks += 1
        counts.blocks_added += 1
        counts.allocated += size
        counts.allocated_added += size
        counts.requested += requested
        counts.requested_added += requested
        everything.blocks += 1
        everything.blocks_added += 1
        everything.allocated += size
        everything.allocated_added += size
        everything.requested += requested
        everything.requested_added += requested

    def give_back(self, counts: Counts, size: int) -> None:
        """Count a block that is handed out no more, and is active until it is free."""
        everything = self.all
        counts.blocks -= 1
        counts.allocated -= size
        everything.blocks -= 1
        everything.allocated -= size

    def wait(self, counts: Counts, size: int, blocks: int) -> None:
        """Count blocks that begin (or, if negative, cease) to wait for another stream."""
        for kind in (counts, self.all):
            kind.waiting += blocks
            kind.waiting_bytes += size

    def split(self, counts: Counts, size: int, blocks: int) -> None:
        """Count a change of the free pieces of split segments."""
        if size:
            counts.split_bytes.change(size)
            self.all.split_bytes.change(size)
        if blocks:
            counts.splits.change(blocks)
            self.all.splits.change(blocks)

    def note_peaks(self) -> None:
        """Must be called before anything falls that has risen."""
        self.all.note_peaks()
        self.small.note_peaks()
        self.large.note_peaks()

    def reset_peaks(self) -> None:
        """Let every peak be the level now."""
        for counts in (self.all, self.small, self.large):
            counts.reset_peaks()
        for tally in (self.oversize_allocations, self.oversize_segments):
            tally.peak = tally.current

    def reset_accumulated(self) -> None:
        """Start all running sums anew."""
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
            for name, current, peak, added in counts.lines():
                yield f"{name}.{kind}", current, peak, added
        for name, tally in (
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ):
            yield name, tally.current, tally.peak, tally.added
