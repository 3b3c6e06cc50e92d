"""Switches the allocator's memory history on for a cell, and shares it with a user who records."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpumem_magic.allocator.snapshot import Segment
from gpumem_magic.sources import torch_release
from gpumem_magic.sources.cuda.device import CUDA, is_initialized, namespace, read_counters
from gpumem_magic.sources.cuda.history import Entry, count_changes, newest, parse_segments

RESET = (
    "The cell reset PyTorch's accumulated memory statistics, so backward passes and owners may be "
    "matched to the wrong events."
)


_KEEPS_ERRORS = 2, 12
"""PyTorch from which a free that is recorded with its stack keeps the error that is under way. With
2.11, one that is raised where a backward pass unpacks what was saved is lost, and so is that by
which a checkpoint ends once it has what it needs: the pass ends in a SystemError."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What the history of one device held. dropped: allocations and frees that it lost, all before
    those of `trace`; None: nobody counted them. end: the segments after the last; None: not read.
    """

    trace: Sequence[Entry]
    segments: tuple[Segment, ...]
    settings: Mapping[str, Any]
    dropped: int | None
    end: tuple[Segment, ...] | None = None


class HistoryRecorder:
    """The memory history of all devices between `start` and `stop`.

    The history has one owner in a process. When the user records already, or begins or ends it
    while we do, their settings and their state afterwards are theirs; we read along.
    """

    def __init__(self, max_entries: int, kind: str = CUDA) -> None:
        self._kind = kind
        self.notes: list[str] = []
        self._traces: dict[int, list[Entry]]
        self._enabled: bool
        self._users: bool
        self._max_entries = max_entries
        self._running = False
        self._late: Callable[[], None] | None = None
        self._original: Callable[..., Any] | None = None
        self._watch: Callable[..., Any] | None = None
        self._backward_passes = 0
        self._counting = threading.Lock()
        self._forget()

    def start(self) -> None:
        """Begin now, or, when CUDA is not initialised yet, in the moment it will be."""
        self._forget()
        self._running = True
        if is_initialized(self._kind):
            self._begin()
            return
        self._late = self._begin
        # torch's own way to do something on initialisation, without the stack it would format
        self._torch._queued_calls.append((self._late, ["gpumem_magic, to measure a cell\n"]))

    def stop(self) -> Mapping[int, Capture]:
        """End, and leave the history as the user would have it. Captures by device; {} if none."""
        if not self._running:
            return {}
        with self._counting:  # a backward pass of another thread may end just now
            self._running = False
        self._leave_queue()
        self._unwatch()
        try:
            self._drain()
        finally:
            if self._enabled and not self._users:
                self._record(None)
            self._enabled = False
        captures = {
            device: Capture(
                *(trace, self._segments[device], self._settings, self._dropped[device]),
                self._ends.get(device),
            )
            for device, trace in self._traces.items()
        }
        self._traces = {}  # large: they live no longer than the captures
        return captures

    def in_backward(self, more: int) -> None:
        """So many backward passes more run now: frees are recorded without stacks meanwhile, where
        PyTorch would lose errors by these."""
        with self._counting:
            self._backward_passes += more
            if self._running and self._enabled and not (self._users or keeps_errors()):
                self._record_stacks_of("alloc" if self._backward_passes else "all")

    @property
    def _torch(self) -> Any:
        return namespace(self._kind)

    def _forget(self) -> None:
        self.notes = []
        self._traces = {}
        self._segments: dict[int, tuple[Segment, ...]] = {}
        self._dropped: dict[int, int] = {}
        self._ends: dict[int, tuple[Segment, ...]] = {}
        self._marks: dict[int, int] = {}
        self._settings: Mapping[str, Any] = {}
        self._enabled = False  # a history is running, ours or the user's
        self._users = False  # the user wants it running when we are done
        self._fresh = False  # it began empty at the marks
        self._since = 0.0

    def _begin(self) -> None:
        if not self._running:
            return
        try:
            self._users = self._enabled = _is_recording(self._kind)
            self._since = time.time()
            self._look_at_start()
            if not self._enabled:
                self._enable()
            self._watch_user()
        except (RuntimeError, TypeError, AttributeError) as error:
            self._note_failure("keeps no history here", error)

    def _look_at_start(self) -> None:
        snapshot = _take_snapshot(self._kind, traces=False)
        self._settings = snapshot.get("allocator_settings", {})
        for device in range(self._torch.device_count()):
            self._traces[device] = []
            self._dropped[device] = 0
            self._segments[device] = parse_segments(snapshot["segments"], device)
            self._marks[device] = read_counters(device, self._kind).changes

    def _enable(self) -> None:
        self._record_stacks_of("all")
        self._enabled = self._fresh = True

    def _record_stacks_of(self, what: str) -> None:
        self._record("all", context=what, stacks="python", max_entries=self._max_entries)

    def _record(self, *args: Any, **kwargs: Any) -> None:
        (self._original or self._torch.memory._record_memory_history)(*args, **kwargs)

    def _drain(self) -> None:
        """Move what was recorded since the marks into the traces; without a history it is lost."""
        found: Mapping[str, Any] = {}
        if self._enabled:
            try:
                with no_collection():
                    found = _take_snapshot(self._kind, traces=True)
            except RuntimeError as error:  # a device in an error state
                self._note_failure("did not show its history", error)
        traces, self._ends = found.get("device_traces", ()), {}
        for device in self._marks:
            self._keep(device, traces[device] if device < len(traces) else ())
            if self._dropped[device] and found:
                self._ends[device] = parse_segments(found["segments"], device)

    def _keep(self, device: int, trace: Sequence[Entry]) -> None:
        now = read_counters(device, self._kind).changes
        changes = now - self._marks[device]
        available = count_changes(trace)
        if changes < 0 or (self._fresh and available > changes):
            self._note(RESET)
            changes = available if self._fresh else _changes_since(trace, self._since)
        lost = changes - available
        if lost > 0:  # only what goes on without a gap up to the end is of use
            self._dropped[device] += lost + count_changes(self._traces[device])
            self._traces[device] = []
        kept = trace if self._fresh else newest(trace, min(changes, available), self._since)
        self._traces[device] += kept
        self._marks[device] = now

    def _note_failure(self, what: str, error: Exception) -> None:
        reason = str(error).partition("\n")[0]
        self._note(f"PyTorch's allocator {what}, so there are only totals ({reason}).")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _watch_user(self) -> None:
        """See the user's own calls of `_record_memory_history`, which would end or clear ours."""
        original = self._torch.memory._record_memory_history

        @functools.wraps(original)
        def record(*args: Any, **kwargs: Any) -> Any:
            if not self._running:
                return original(*args, **kwargs)
            self._drain()
            try:
                return original(*args, **kwargs)
            finally:
                self._share()

        self._original, self._watch = original, record
        self._torch.memory._record_memory_history = record

    def _share(self) -> None:
        """The user has just changed the history: note what they want, and go on recording."""
        self._users = _is_recording(self._kind)
        self._fresh = False
        self._since = time.time()
        for device in self._marks:
            self._marks[device] = read_counters(device, self._kind).changes
        if not self._users:
            self._enable()

    def _unwatch(self) -> None:
        memory = self._torch.memory
        if self._watch is not None and memory._record_memory_history is self._watch:
            memory._record_memory_history = self._original
        self._original = self._watch = None

    def _leave_queue(self) -> None:
        queue = self._torch._queued_calls
        queue[:] = [entry for entry in queue if entry[0] is not self._late]
        self._late = None


def keeps_errors() -> bool:
    """Whether PyTorch keeps an error while it records a free with its stack; else the frees of
    backward passes have the stacks of their allocations, which do not count."""
    return torch_release() >= _KEEPS_ERRORS


def _is_recording(kind: str) -> bool:
    import torch

    ask = getattr(torch._C, f"_{kind}_isHistoryEnabled", None)
    return bool(ask()) if ask else any(_take_snapshot(kind, traces=True)["device_traces"])


def _take_snapshot(kind: str, traces: bool) -> Mapping[str, Any]:
    """The allocator's state; without the history's entries where this version of torch can."""
    import torch

    memory = namespace(kind).memory
    if not traces and "include_traces" in inspect.signature(memory.memory_snapshot).parameters:
        return torch._C._cuda_memorySnapshot((0, 0, False))
    snapshot: Mapping[str, Any] = memory._snapshot()
    return snapshot


def _changes_since(trace: Sequence[Entry], since: float) -> int:
    return count_changes([entry for entry in trace if entry.get("time_us", 0) >= since * 1e6])


@contextmanager
def no_collection() -> Iterator[None]:
    """Wait with Python's garbage collection: a long history is millions of objects and no garbage.

    Taking a snapshot of it is 7 times as fast so.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
