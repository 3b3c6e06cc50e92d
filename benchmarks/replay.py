"""Replays traces recorded on real GPUs in the simulated allocator: are they the same, and how fast?

python benchmarks/replay.py [--json] [--rounds N]
The traces are read from $GPUMEM_SHARED/allocator_traces or ../shared/allocator_traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from gpumem_magic.allocator.caching import AllocationFailed, CachingAllocator
from gpumem_magic.allocator.driver import Process
from gpumem_magic.allocator.pools import SMALL_SEGMENT, SMALL_SIZE, round_size
from gpumem_magic.allocator.settings import INTERVALS, Settings
from gpumem_magic.allocator.snapshot import BlockState, Segment

TOTAL = 80 << 30  # of no effect: the trace itself says when memory ran out
SEGMENT_EVENTS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")

Event = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded trace: the state before it, its events, the real allocator's final counters."""

    name: str
    torch: str
    expandable: bool
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    final: dict[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one replay. misses: what the simulation decided otherwise than the real one.

    decisions: mallocs; calls: mallocs and frees; seconds: of processor time.
    """

    name: str
    torch: str
    events: int
    decisions: int
    calls: int
    segment_events: int
    misses: tuple[str, ...]
    final: dict[str, int]
    seconds: float


class RecordedDevice:
    """Grants what the real device granted, at the same addresses, and refuses the rest."""

    def __init__(self) -> None:
        self.total = TOTAL
        self.free = 0
        self.expected: deque[Event] = deque()
        self.misses: list[str] = []
        self.agreed = 0

    def processes(self) -> tuple[Process, ...]:
        return ()

    def malloc(self, size: int) -> int | None:
        if self.expected and self.expected[0][0] == "segment_alloc":
            return self._agree("segment_alloc", self.expected[0][1], size)
        return None

    def release(self, address: int, size: int) -> None:
        self._agree("segment_free", address, size)

    def reserve(self, size: int) -> int:
        return self.expected[0][1] if self.expected else 0

    def unreserve(self, address: int, size: int) -> None:
        """The trace does not tell address ranges."""

    def map(self, address: int, size: int) -> bool:
        if not self.expected or self.expected[0][0] != "segment_map":
            return False
        self._agree("segment_map", address, size)
        return True

    def unmap(self, address: int, size: int) -> None:
        self._agree("segment_unmap", address, size)

    def _agree(self, action: str, address: int, size: int) -> int:
        recorded = self.expected.popleft() if self.expected else None
        if recorded is None or recorded[:3] != (action, address, size):
            self.misses.append(f"{action} {address} {size} where {recorded} was recorded")
        else:
            self.agreed += 1
        return address


def traces_folder() -> Path:
    """Where the recorded traces are expected."""
    shared = os.environ.get("GPUMEM_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    return Path(shared) / "allocator_traces"


def load(path: Path) -> Trace:
    """Read one trace."""
    with gzip.open(path, "rt") as file:
        recorded = json.load(file)
    rank = _stream_ranks(recorded["events"])
    return Trace(
        name=path.name.removesuffix(".json.gz"),
        torch=recorded["torch"],
        expandable=recorded["expandable_segments"],
        segments=_initial(recorded, rank),
        events=tuple((e[0], e[1], e[2], rank[e[3]]) for e in recorded["events"]),
        final=recorded["final"],
    )


def replay(trace: Trace) -> Outcome:
    """Feed the trace's allocations and frees to the simulation and compare what it does."""
    device = RecordedDevice()
    settings = Settings(expandable_segments=trace.expandable)
    allocator = CachingAllocator.from_snapshot(device, trace.segments, settings)
    steps = _steps(trace.events)
    started = time.process_time()
    decisions = _run(allocator, device, steps)
    seconds = time.process_time() - started
    final = {name: getattr(allocator, name) for name in ("reserved", "allocated", "active")}
    device.misses += [f"{event} was not simulated" for event in device.expected]
    device.misses += [
        f"final {name} {final[name]} where {trace.final[name]} was recorded"
        for name in final
        if final[name] != trace.final[name]
    ]
    return Outcome(
        name=trace.name,
        torch=trace.torch,
        events=len(trace.events),
        decisions=decisions,
        calls=decisions + sum(step[0] == "free_requested" for step in steps),
        segment_events=device.agreed,
        misses=tuple(device.misses),
        final=final,
        seconds=seconds,
    )


def _run(allocator: CachingAllocator, device: RecordedDevice, steps: list[Event]) -> int:
    malloc, free = allocator.malloc, allocator.free
    expected, misses = device.expected, device.misses
    decisions = 0
    for step in steps:
        action, address, size, stream = step
        if action == "alloc":
            decisions += 1
            found = malloc(size, stream)
            if found != address or expected:
                misses.append(f"alloc of {size} at {found}, not {address}; left: {expected}")
                expected.clear()
        elif action == "free_requested":
            free(address)
        elif action == "empty_cache":
            allocator.empty_cache()
        elif action == "oom":
            _expect_failure(allocator, device, size, stream)
        elif action != "free_completed":
            expected.append(step)
    return decisions


def _expect_failure(
    allocator: CachingAllocator, device: RecordedDevice, size: int, stream: int
) -> None:
    try:
        found = allocator.malloc(size, stream)
    except AllocationFailed:
        return
    device.misses.append(f"alloc of {size} at {found} where the real allocator was out of memory")


def _steps(events: tuple[Event, ...]) -> list[Event]:
    """The events, with a step of its own where the program called empty_cache.

    Segments that are freed because an allocation failed are followed by what that allocation got;
    others are the program's doing, which the trace does not name.
    """
    steps: list[Event] = []
    following = ""
    for event in reversed(events):
        released = event[0] in ("segment_free", "segment_unmap")
        if released and following in ("free_requested", "alloc", ""):
            steps.append(("empty_cache", 0, 0, 0))
        if event[0] != "free_completed":
            following = "release" if released else event[0]
        steps.append(event)
    return steps[::-1]


def _stream_ranks(events: list[Any]) -> dict[int, int]:
    """The streams in the order of their handles, as far as the trace shows it.

    The real allocator orders streams by the address of the handle, and the trace numbers them anew.
    The order in which segments were freed shows it: one must explain all, or graphlib raises.
    """
    before: dict[int, set[int]] = {event[3]: set() for event in sorted(events, key=lambda e: e[3])}
    last: tuple[int, bool] | None = None
    for action, _, size, stream, *_ in events:
        small = size == SMALL_SEGMENT
        if action != "segment_free":
            last = None
            continue
        if last is not None and last[1] == small and last[0] != stream:
            before[stream].add(last[0])
        last = (stream, small)
    return {stream: rank for rank, stream in enumerate(TopologicalSorter(before).static_order())}


def _initial(recorded: dict[str, Any], rank: dict[int, int]) -> tuple[Segment, ...]:
    """The segments before the first event, their free blocks filled in."""
    blocks = sorted(recorded["initial_blocks"])
    segments = []
    for address, size, stream in sorted(recorded["initial_segments"]):
        inside = [block for block in blocks if address <= block[0] < address + size]
        pool = "small" if size == SMALL_SEGMENT else "large"
        states = tuple(_tile(inside, address, address + size, pool))
        segments.append(Segment(address, size, False, states, rank.get(stream, stream), pool))
    return tuple(segments)


def _tile(blocks: list[list[int]], start: int, end: int, pool: str) -> list[BlockState]:
    states: list[BlockState] = []
    starts = [block[0] for block in blocks[1:]] + [end]
    if not blocks or blocks[0][0] > start:
        states.append(BlockState(start, (blocks[0][0] if blocks else end) - start, 0, "inactive"))
    for (address, requested, known), following in zip(blocks, starts, strict=False):
        size = known or round_size(requested, (0,) * INTERVALS)
        gap = following - address - size
        if pool == "large" and 0 < gap <= SMALL_SIZE:  # too little to be split off: slack
            size, gap = size + gap, 0
        states.append(BlockState(address, size, requested, "active_allocated"))
        if gap:
            states.append(BlockState(address + size, gap, 0, "inactive"))
    return states


def _table(outcomes: list[Outcome]) -> str:
    columns = ("events", "mallocs", "segments", "misses", "events/s", "calls/s")
    lines = [f"{'trace':24}{'torch':>11}" + "".join(f"{column:>11}" for column in columns)]
    lines += [_row(o.name, o.torch, [o]) for o in outcomes]
    return "\n".join([*lines, _row("all", "", outcomes)])


def _row(name: str, torch: str, outcomes: list[Outcome]) -> str:
    seconds = sum(o.seconds for o in outcomes)
    events = sum(o.events for o in outcomes)
    numbers = [
        events,
        sum(o.decisions for o in outcomes),
        sum(o.segment_events for o in outcomes),
        sum(len(o.misses) for o in outcomes),
        round(events / seconds),
        round(sum(o.calls for o in outcomes) / seconds),
    ]
    return f"{name:24}{torch:>11}" + "".join(f"{number:>11,}" for number in numbers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--rounds", type=int, default=5, help="the fastest round counts")
    options = parser.parse_args()
    paths = sorted(traces_folder().glob("*.json.gz"))
    if not paths:
        print(f"no traces in {traces_folder()}; set GPUMEM_SHARED", file=sys.stderr)
        return 0
    traces = [load(path) for path in paths]
    outcomes = [
        min((replay(trace) for _ in range(options.rounds)), key=lambda outcome: outcome.seconds)
        for trace in traces
    ]
    if options.json:
        print(json.dumps({"replay": [asdict(outcome) for outcome in outcomes]}, indent=1))
    else:
        print(_table(outcomes))
    return int(any(outcome.misses for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
