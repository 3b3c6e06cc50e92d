"""The real device: PyTorch's counters and memory history of a cell -> one Recording per device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpumem_magic.sources.cuda.device import (
    CUDA,
    NOTHING,
    XPU,
    Counters,
    DeviceReader,
    current_device,
    devices,
    read_counters,
)
from gpumem_magic.sources.cuda.history import (
    Columns,
    EntryColumns,
    build_columns,
    live_blocks,
    paint,
    parse_rules,
    rows_by_changes,
)
from gpumem_magic.sources.cuda.memory import Recorded, cuda_memory
from gpumem_magic.sources.cuda.recorder import Capture, HistoryRecorder, keeps_errors, no_collection
from gpumem_magic.sources.cuda.regions import Regions, Span
from gpumem_magic.sources.cuda.rewind import rewind
from gpumem_magic.sources.cuda.summed_up import find_peaks, with_sums
from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.failures import (
    device_of,
    find_failure,
    one_line,
    out_of_memory,
    outside_allocator,
)
from gpumem_magic.sources.holders.left import find_held
from gpumem_magic.sources.objects.allocation_sites import (
    AllocationSite,
    Told,
    born_since,
    with_categories,
)
from gpumem_magic.sources.objects.labels import (
    START,
    OwnerWatch,
    Workspace,
    address_of,
    label_owners,
    label_workspaces,
)
from gpumem_magic.sources.stacks.callsite import error_line
from gpumem_magic.sources.summing import sums_note
from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import Level, Trace
from gpumem_magic.values.recording import (
    Cell,
    Device,
    Held,
    Label,
    LiveBlocks,
    Phase,
    Reading,
    Recording,
    Rules,
)

_BACKENDS = {CUDA: ("CUDA", "HIP"), XPU: ("XPU",)}
"""What texts of out-of-memory errors call these devices."""

MAX_ENTRIES = 500_000
"""Events of a cell that are kept, 1 KB of host memory each; the oldest are summed up."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """All devices at the begin or the end of a cell."""

    counters: Mapping[int, Counters]
    readings: Mapping[int, Reading]


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is common to the recordings of a cell, once it is over."""

    cell: Cell
    cells: Mapping[str, Cell]
    error: BaseException | None
    started: float
    seconds: float
    before: _Moment
    after: _Moment
    captures: Mapping[int, Capture]
    spans: tuple[Span, ...]


class CudaSource:
    """Measures cells on CUDA, ROCm or XPU devices. `index`: the one to show when a cell uses none.
    kind: of the devices, CUDA (ROCm's are called so too) or XPU."""

    def __init__(
        self, index: int | None = None, max_entries: int = MAX_ENTRIES, kind: str = CUDA
    ) -> None:
        self.kind = kind
        self._index = index
        self._reader = DeviceReader(kind)
        self._recorder = HistoryRecorder(max_entries, kind)
        self._regions = Regions(self._mark, self._look, self._recorder.in_backward)
        self._watch: OwnerWatch | None = None
        self._marks: list[dict[int, int]] = []
        self._before = _Moment({}, {})
        self._told: dict[int, Told] = {}
        # of what was alive before this cell
        self._sites: dict[int, Mapping[int, AllocationSite]] = {}
        self._recorded: dict[str, float] = {}  # when each cell was last recorded
        self._workspaces: dict[int, Mapping[int, Workspace]] = {}  # of the last cell
        self._started = self._clock = 0.0

    @property
    def device(self) -> Device:
        """The device that `level` speaks of."""
        return self._reader.describe(self._current())

    def enter(self) -> None:
        """Nothing: the user's code runs on the device as it is."""

    def leave(self) -> None:
        """Nothing, as for `enter`."""

    def level(self) -> Level:
        """What is allocated, reserved and used on the current device."""
        return self._reader.level(self._current())

    def start(self, namespaces: Callable[[], Mapping[str, Any]]) -> None:
        """Begin recording all devices; `namespaces()` gives the names that may own tensors."""
        self._marks = []
        self._watch = OwnerWatch(namespaces, self._changes, partial(address_of, kind=self.kind))
        self._before = self._look_at_devices()
        self._recorder.start()
        self._look(START, None)
        self._regions.install()
        self._started, self._clock = time.time(), time.perf_counter()

    def stop(
        self, cell: Cell, cells: Mapping[str, Cell], error: BaseException | None
    ) -> tuple[Recording, ...]:
        """End recording; one Recording per device that the cell used, the most used first."""
        if self._watch is None:
            raise RuntimeError("nothing is being recorded: start comes first")
        seconds = time.perf_counter() - self._clock
        try:
            self._regions.remove()
            self._watch.look("end", self._mark, error=error)
            self._watch.read_names(error)
        finally:
            captures = self._recorder.stop()
        after = self._look_at_devices()
        ended = _Ended(
            *(cell, cells, error, self._started, seconds, self._before, after, captures),
            self._regions.spans,
        )
        with no_collection():
            recordings = [self._assemble(ended, device) for device in self._used(ended)]
        self._watch = None
        return tuple(sorted(recordings, key=lambda r: len(r.events), reverse=True))

    def remember(self, recording: Recording, trace: Trace) -> None:
        """Keep what `trace` tells of the blocks that stay, until something happens to any block."""
        # Known only now: Python's collector may have freed blocks while the trace was made.
        device = recording.device.index
        self._recorded[recording.cell.filename] = recording.started
        earlier = self._sites.pop(device, {})
        changes = self._reader.counters(device).changes
        self._told[device] = Told.of(recording, trace, earlier, changes)

    def memory(self) -> DeviceMemory:
        """What the allocator of the current device holds now."""
        index = self._current()
        counters = self._reader.counters(index)
        known = self._known(index, counters)
        return cuda_memory(
            self.device,
            self._reader.read(index, counters),
            self._reader.processes(index),
            Recorded(
                known.categories if known else {},
                known.sites if known else {},
                self._workspaces.get(index, {}),
                self._regions.last is Phase.OPTIMIZER if known else None,
            ),
            self.kind,
        )

    def born_in(self, cell: Cell) -> frozenset[int]:
        """See Source: on the current device, if no block has changed since the last recording."""
        index = self._current()
        known = self._known(index, self._reader.counters(index))
        return born_since(known.sites if known else {}, self._recorded.get(cell.filename))

    def _known(self, index: int, counters: Counters) -> Told | None:
        """What the last cell told, if no block has changed since."""
        told = self._told.get(index)
        return told if told is not None and told.changes == counters.changes else None

    def close(self) -> None:
        """Give up a recording that was not stopped, and let go of the driver."""
        self._regions.remove()
        self._recorder.stop()
        self._watch = None
        self._reader.close()

    def _current(self) -> int:
        return current_device(self.kind) if self._index is None else self._index

    def _mark(self) -> int:
        """Remember how far every device's history is; the number of the mark."""
        here = devices(self.kind)
        self._marks.append({one: read_counters(one, self.kind).changes for one in here})
        return len(self._marks) - 1

    def _changes(self) -> int:
        """How far the histories were at the last mark, together, since the cell began."""
        counters = self._before.counters
        return sum(
            changes - counters.get(device, NOTHING).changes
            for device, changes in (self._marks[-1].items() if self._marks else ())
        )

    def _look(self, kind: str, optimizer: object | None) -> None:
        if self._watch is not None:
            self._watch.look(kind, self._mark, optimizer)

    def _look_at_devices(self) -> _Moment:
        indices = {*devices(self.kind), self._current()}
        counters = {device: self._reader.counters(device) for device in indices}
        readings = {device: self._reader.read(device, counters[device]) for device in indices}
        return _Moment(counters, readings)

    def _used(self, ended: _Ended) -> list[int]:
        """Devices with a change in this cell, and the current one."""
        before, after = ended.before.counters, ended.after.counters
        changed = [d for d in after if _busy(before.get(d, NOTHING), after[d])]
        return list(dict.fromkeys([self._current(), *changed]))

    def _assemble(self, ended: _Ended, device: int) -> Recording:
        before = ended.before.counters.get(device, NOTHING)
        after = ended.after.counters[device]
        capture = ended.captures.get(device) or _missing(before, after)
        rules = parse_rules(capture.settings)
        columns, sums = _columns(capture, ended, rules, before, after)
        rows = self._rows(columns, device, before, capture.dropped or 0, sums)
        moved = (_moved(span, rows, sums) for span in ended.spans)
        columns = paint(columns, moved, keeps_errors())
        initial = self._with_categories(live_blocks(capture.segments), device, before)
        assert self._watch is not None
        seen = [(rows[mark], owned) for mark, owned in self._watch.seen if rows[mark] >= 0]
        labels = label_owners(seen, columns.events, initial)
        kept: tuple[Label, ...] = ()
        if self.kind == CUDA:  # the libraries of others are not known
            kept, self._workspaces[device] = label_workspaces(
                labels, columns.events, initial, columns.alive, self._workspaces.get(device, {})
            )
        message = out_of_memory(ended.error, _BACKENDS[self.kind])
        failed = message is not None and device_of(message) in (device, None)
        return Recording(
            device=self._reader.describe(device),
            cell=ended.cell,
            started=ended.started,
            seconds=ended.seconds,
            before=ended.before.readings.get(device, _unread(before)),
            after=ended.after.readings[device],
            events=columns.events,
            stacks=columns.stacks,
            initial=initial,
            labels=labels + kept,
            cells=ended.cells,
            failure=find_failure(message or "", columns, rules) if failed else None,
            retries=_grown(before.retries, after.retries),
            error=None if ended.error is None else one_line(ended.error),
            error_line=error_line(ended.error, ended.cell, ended.cells),
            complete=capture.dropped == 0 or sums > 0,
            dropped=capture.dropped,
            notes=self._notes(ended, capture, columns, before, after, sums),
            names=self._watch.names,
            machine=self._reader.machine(device, failed),
            rules=rules,
            held=self._held(ended, device, columns),
            modules=self._watch.modules(columns.stacks),
        )

    def _held(self, ended: _Ended, device: int, columns: Columns) -> tuple[Held, ...]:
        """Who holds what the cell left, on the device that `memory` speaks of."""
        if self._watch is None or device != self._current():
            return ()
        return find_held(self.memory, self._watch.visible(), columns.events, ended.error)

    def _with_categories(self, blocks: LiveBlocks, device: int, before: Counters) -> LiveBlocks:
        """What the cell before this one told of the blocks, if no block has changed since."""
        told = self._told.pop(device, None)
        if told is None or told.changes != before.changes:
            return blocks
        self._sites[device] = told.sites
        return with_categories(blocks, told.categories)

    def _rows(
        self, columns: Columns, device: int, before: Counters, lost: int, sums: int
    ) -> list[int]:
        """The row of `columns` that each mark stands at, where the first `sums` rows stand for as
        many changes as were `lost`; -1 for a mark among these."""
        rows = rows_by_changes(columns.events.action[sums:]) + sums
        counts = [mark.get(device, 0) - before.changes for mark in self._marks]
        known = [int(rows[min(max(count - lost, 0), len(rows) - 1)]) for count in counts]
        return [
            row if count >= lost else 0 if count <= 0 else -1
            for row, count in zip(known, counts, strict=True)
        ]

    def _notes(
        self,
        ended: _Ended,
        capture: Capture,
        columns: Columns,
        before: Counters,
        after: Counters,
        sums: int,
    ) -> tuple[str, ...]:
        notes = list(self._recorder.notes)
        if capture.dropped and sums:
            notes.append(sums_note(capture.dropped))
        elif capture.dropped:
            notes.append(
                f"PyTorch's memory history lost {capture.dropped:,} allocations and frees of this "
                "cell, so lines and categories are missing; the totals are PyTorch's counters"
                f"{_own_peak(before, after)}."
            )
        elif capture.dropped is None and after.peak > before.peak:
            notes.append(f"PyTorch's counters tell the cell's peak: {format_bytes(after.peak)}.")
        elif capture.dropped == 0 and (columns.misses or columns.allocated != after.allocated):
            notes.append(
                "Some blocks could not be followed to their exact size; the totals are PyTorch's "
                "counters, the lines may differ from them."
            )
        failure = self._watch.failure if self._watch else None
        return tuple(filter(None, (*notes, failure, outside_allocator(ended.error))))


def _missing(before: Counters, after: Counters) -> Capture:
    """Nothing was recorded: as many events were lost as the counters tell, if these tell of any."""
    lost = max(0, after.changes - before.changes)
    counts = after.changes > 0 or not after.peak  # cudaMallocAsync counts bytes, and no events
    return Capture((), (), {}, lost if lost or (counts and not _busy(before, after)) else None)


def _columns(
    capture: Capture, ended: _Ended, rules: Rules, before: Counters, after: Counters
) -> tuple[Columns, int]:
    """The events of a device, and how many rows in front stand for those that were lost; no events
    where it is not known what these came to."""
    times = ended.started, ended.seconds
    entries = EntryColumns(capture.trace)
    if not capture.dropped:
        return build_columns(entries, capture.segments, rules, *times), 0
    if capture.trace and capture.end is not None:
        begin = rewind(entries, capture.end, rules)
        columns = build_columns(entries, begin, rules, *times)
        peaks = find_peaks(before, after, begin, columns.events)
        if peaks is not None and columns.allocated == after.allocated:
            return with_sums(columns, capture.segments, begin, peaks)
    return build_columns(EntryColumns(), capture.segments, rules, *times), 0


def _moved(span: Span, rows: list[int], sums: int) -> Span:
    return replace(span, start=max(rows[span.start], sums), end=max(rows[span.end], sums))


def _unread(counters: Counters) -> Reading:
    reason = "the device was not in use when the cell began"
    unknown = dict.fromkeys(("device_used", "process_used"), reason)
    return Reading(counters.allocated, counters.reserved, None, None, unknown)


def _own_peak(before: Counters, after: Counters) -> str:
    """The cell's peak, where PyTorch's counter can tell: it is not lower than an older one."""
    return f", whose peak in it is {format_bytes(after.peak)}" if after.peak > before.peak else ""


def _busy(before: Counters, after: Counters) -> bool:
    return replace(after, peak=before.peak, reserved_peak=before.reserved_peak) != before


def _grown(before: int, after: int) -> int:
    """How much a counter grew; the cell may have reset it."""
    return after - before if after >= before else after
