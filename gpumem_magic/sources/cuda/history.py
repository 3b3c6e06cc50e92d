"""PyTorch's memory history of one device -> columns. The only place that knows its dictionaries."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.allocator.settings import INTERVALS
from gpumem_magic.allocator.snapshot import IN_USE, INACTIVE, PENDING, BlockState, Segment
from gpumem_magic.sources.cuda.block_sizes import BlockReplay
from gpumem_magic.sources.cuda.regions import Span, completed, encloses
from gpumem_magic.sources.stacks.frames import PACKAGE
from gpumem_magic.values.recording import Action, Events, Frame, LiveBlocks, Phase, Rules, Stack

Entry = Mapping[str, Any]
"""One entry of `torch.cuda.memory._snapshot()["device_traces"][device]`."""

ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE,
    "free": Action.FREE,
    "free_completed": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_map": Action.SEGMENT_MAP,
    "segment_unmap": Action.SEGMENT_UNMAP,
    "oom": Action.OOM,
}
"""The entries that are changes of memory."""
_COUNTED = frozenset({"alloc", "free_requested", "free", "oom"})
_COMPILED = re.compile(
    r"\.(?:cpp|cc|c|cu|cuh|h|hpp|S|so(?:\.\d+)*)$|^(?:\?\?)?$|/bin/python[\d.]*$"
)
"""Files of C++ frames: sources, and what torch 2.15 names where it finds none, the library."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Events with their stacks, and where the replay of the blocks ended.

    allocated, alive: bytes and addresses owned after the last event. misses: events that did not
    fit the blocks known. free_at_oom: see BlockReplay. device_free: what CUDA had left then.
    """

    events: Events
    stacks: tuple[Stack, ...]
    allocated: int
    alive: frozenset[int]
    misses: int
    free_at_oom: tuple[int, int] | None
    device_free: int | None


def parse_segments(segments: Iterable[Entry], device: int) -> tuple[Segment, ...]:
    """The segments of `device` in a snapshot, with their blocks in order of address."""
    return tuple(_segment(entry) for entry in segments if entry.get("device", device) == device)


def parse_rules(settings: Mapping[str, Any]) -> Rules:
    """The part of a snapshot's `allocator_settings` that decides block sizes; {} is the default."""
    limit = settings.get("max_split_size", -1)
    divisions = settings.get("roundup_power2_divisions", {})
    known = [int(divisions[power]) for power in sorted(divisions, key=int)]
    # unlimited is -1 in snapshots, the largest size_t in some versions
    unlimited = limit < 0 or limit >= 1 << 62
    return Rules(None if unlimited else int(limit), (*known, *(0,) * (INTERVALS - len(known))))


def live_blocks(segments: Iterable[Segment]) -> LiveBlocks:
    """The blocks that someone owns."""
    segments = tuple(segments)
    owned = [block for segment in segments for block in segment.blocks if block.allocated]
    held = [(segment.address, segment.size, segment.expandable) for segment in segments]
    return LiveBlocks(
        np.array([block.address for block in owned], np.int64),
        np.array([block.size for block in owned], np.int64),
        np.array([block.requested for block in owned], np.int64),
        segments=np.array(held, np.int64).reshape(-1, 3),
    )


def count_changes(trace: Sequence[Entry]) -> int:
    """How many entries hand a block out, take it back or fail: what the allocator counts."""
    return sum(entry["action"] in _COUNTED for entry in trace)


def newest(trace: Sequence[Entry], changes: int, since: float) -> Sequence[Entry]:
    """The end of a trace that holds the last `changes` allocations, frees and failures.

    since: Unix time; what lies between the first of them and the one before it belongs to the
    end when it is not older.
    """
    first = len(trace)
    for index in range(len(trace) - 1, -1, -1):
        if trace[index]["action"] in _COUNTED:
            if changes == 0:
                break
            changes -= 1
            first = index
        elif changes == 0 and _older(trace[index], since):
            break
        elif changes == 0:
            first = index
    return trace[first:]


class EntryColumns:
    """The entries of one device's history as columns of equal length, to which more may be added.

    actions, addresses, requested, micros (Unix time in millionths of a second), stack (an index
    into `stacks`, -1 for none). device_free: what the last failed allocation found free on the
    device.
    """

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.actions, self.stack = array("b"), array("i")
        self.addresses, self.requested, self.micros = array("q"), array("q"), array("q")
        self.device_free: int | None = None
        self._table = _StackTable()
        self._frames: dict[int, Frame | None] = {}
        self._seen: dict[int | tuple[int, ...], int] = {}
        self._alive: list[object] = []  # what is known by its identity
        self.extend(entries)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """All different stacks."""
        return tuple(self._table.known)

    def __len__(self) -> int:
        return len(self.actions)

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add entries at the end; actions that are no changes of memory are left out."""
        known = [entry for entry in entries if entry["action"] in ACTIONS]
        self.actions.extend([ACTIONS[entry["action"]] for entry in known])
        self.addresses.extend([entry.get("addr", 0) for entry in known])
        self.requested.extend([entry["size"] for entry in known])
        # no times in torch 2.1
        self.micros.extend([entry["time_us"] for entry in known if "time_us" in entry])
        self.stack.extend([self._number_of(entry.get("frames") or ()) for entry in known])
        for entry in known:
            if entry["action"] == "oom":
                self.device_free = entry.get("device_free")

    def times(self, started: float, seconds: float) -> NDArray[np.float64]:
        """Seconds since `started` (Unix time), from 0 to `seconds`; where only the order is known,
        equal steps."""
        if len(self.micros) < len(self.actions):
            return np.linspace(0, seconds, len(self.actions))
        micros = np.array(self.micros, np.int64)
        return np.clip((micros - round(started * 1e6)) / 1e6, 0, seconds)

    def _number_of(self, raw: Sequence[Entry]) -> int:
        """The number of a stack in the table of different stacks; torch shares lists and frames."""
        number = self._seen.get(id(raw))
        if number is None:
            content = tuple(map(id, raw))
            number = self._seen.get(content)
            if number is None:
                number = self._table.number_of(self._read(raw))
                self._seen[content] = number
            self._seen[id(raw)] = number
            self._alive.append(raw)
        return number

    def _read(self, raw: Sequence[Entry]) -> Stack:
        """A stack that is met for the first time, of the frames that the user may see."""
        for entry in raw:
            if id(entry) not in self._frames:
                self._frames[id(entry)] = _frame(entry)
        found = (self._frames[id(entry)] for entry in raw)
        return tuple(frame for frame in found if frame is not None)


def build_columns(
    entries: EntryColumns,
    segments: Iterable[Segment],
    rules: Rules,
    started: float,
    seconds: float,
) -> Columns:
    """Columns of a history that begins where the blocks lay as `segments` say.

    started: Unix time of the recording's begin, seconds: its length; times are clipped to it.
    """
    count = len(entries)
    replay = BlockReplay(segments, rules)
    followed = replay.sizes(entries.actions, entries.addresses, entries.requested)
    sizes = np.fromiter(followed, np.int64, count)
    events = Events(
        np.array(entries.actions, np.int8),
        np.array(entries.addresses, np.int64),
        sizes,
        np.array(entries.requested, np.int64),
        np.array(entries.stack, np.int32),
        np.zeros(count, np.int8),
        entries.times(started, seconds),
    )
    return Columns(
        events,
        entries.stacks,
        replay.allocated,
        replay.alive,
        replay.misses,
        replay.free_at_oom,
        entries.device_free,
    )


def rows_by_changes(action: NDArray[np.int8]) -> NDArray[np.int64]:
    """Element k: how many rows hold the first k allocations, frees and failures (int64).

    The completion of a free belongs to the free.
    """
    count = len(action)
    counted = np.flatnonzero(np.isin(action, (Action.ALLOC, Action.FREE, Action.OOM)))
    others = np.where(action == Action.FREE_COMPLETED, count, np.arange(count))
    following = np.minimum.accumulate(np.append(others, count)[::-1])[::-1]
    return np.concatenate([np.zeros(1, np.int64), following[counted + 1]])


def paint(columns: Columns, spans: Iterable[Span], own_frees: bool = True) -> Columns:
    """Phases and missing stacks from `spans`, whose positions are rows; later spans win. own_frees:
    whether frees of backward passes have stacks of their own."""
    stacks = _StackTable(columns.stacks)
    freed = np.isin(columns.events.action, (Action.FREE, Action.FREE_COMPLETED))
    phase, stack = columns.events.phase.copy(), columns.events.stack.copy()
    for span in spans:
        rows = slice(span.start, max(span.start, span.end))
        if span.phase is Phase.BACKWARD and not own_frees:
            stack[rows][freed[rows]] = -1
        old = stack[rows].copy()
        for index in np.unique(old).tolist():
            found = stacks.known[index] if index >= 0 else ()
            if span.phase is Phase.BACKWARD:
                stack[rows][old == index] = stacks.number_of(completed(found, span.stack))
            elif found and not encloses(span.stack, found):
                continue  # a step that raised never said when it was over
            phase[rows][old == index] = span.phase
    events = replace(columns.events, phase=phase, stack=stack)
    return replace(columns, events=events, stacks=tuple(stacks.known))


class _StackTable:
    """Numbers for stacks; equal stacks get equal numbers, none at all gets -1."""

    def __init__(self, known: Iterable[Stack] = ()) -> None:
        self.known = list(known)
        self._numbers = {stack: number for number, stack in enumerate(self.known)}

    def number_of(self, stack: Stack) -> int:
        if not stack:
            return -1
        number = self._numbers.setdefault(stack, len(self.known))
        if number == len(self.known):
            self.known.append(stack)
        return number


def _older(entry: Entry, since: float) -> bool:
    if "time_us" in entry:
        return bool(entry["time_us"] < since * 1e6)
    return bool(entry["action"] == "snapshot")  # torch 2.1 has no times, but left this mark


def _segment(entry: Entry) -> Segment:
    blocks, address = [], entry["address"]
    for block in entry["blocks"]:
        size, state = block["size"], block["state"]
        state = state if state in (IN_USE, INACTIVE) else PENDING  # of which there were two
        requested = 0 if state == INACTIVE else block.get("requested_size", size)
        # blocks lie side by side; older versions of torch do not name their addresses
        blocks.append(BlockState(block.get("address", address), size, requested, state))
        address += size
    return Segment(
        address=entry["address"],
        size=entry["total_size"],
        expandable=bool(entry.get("is_expandable", False)),
        blocks=tuple(blocks),
        stream=entry.get("stream", 0),
        pool=entry.get("segment_type", ""),
    )


def _frame(entry: Entry) -> Frame | None:
    """A Python frame that the user may see; None for C++ frames and our own."""
    filename = entry["filename"]
    if _COMPILED.search(filename) or filename.startswith(PACKAGE):
        return None
    return Frame(filename, entry["line"], entry["name"])
