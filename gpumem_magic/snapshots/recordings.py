"""A memory snapshot as recordings, one for each device; run in a process of its own."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpumem_magic.allocator.snapshot import Segment
from gpumem_magic.snapshots.backward import backward_passes
from gpumem_magic.snapshots.checking import Trace, check
from gpumem_magic.snapshots.files import read_plain_values, unpacked_size
from gpumem_magic.snapshots.sources import choose_files
from gpumem_magic.sources.cuda.history import (
    Columns,
    build_columns,
    live_blocks,
    paint,
    parse_rules,
    parse_segments,
)
from gpumem_magic.sources.cuda.rewind import rewind
from gpumem_magic.sources.failures import find_failure
from gpumem_magic.sources.objects.labels import label_workspaces
from gpumem_magic.sources.stacks.callsite import phase_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.recording import (
    Action,
    Device,
    LiveBlocks,
    Phase,
    Reading,
    Recording,
)

_MEMORY = 1 << 30, 3
"""Bytes of address space for reading any file, and for each byte of the file on top."""

_SECONDS = 300

_NOT_TOLD = "a snapshot does not tell what else uses the device"

_OUT_OF_MEMORY = "CUDA out of memory."


def main(path: str) -> None:
    """Write the recordings of a snapshot to standard output; exit with a line that says why not."""
    gc.disable()  # millions of dictionaries, none of which is garbage
    file = Path(path)
    try:
        _bound(_MEMORY[0] + _MEMORY[1] * unpacked_size(file))
        found = recordings(read_plain_values(file))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    except MemoryError:
        sys.exit("it needs more memory than a snapshot of its size can")
    pickle.dump(found, sys.stdout.buffer, protocol=5)


def _bound(memory: int) -> None:
    """Let this process take no more memory than a snapshot needs, nor time without end."""
    try:
        import resource
    except ImportError:  # Windows has no such bounds
        return
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def recordings(snapshot: Any) -> tuple[Recording, ...]:
    """What a snapshot tells of each device that it knows anything of, most events first.

    Raises ValueError for what is none, or contradicts itself.
    """
    check(snapshot)
    traces = [_columns(trace, number) for number, trace in enumerate(snapshot["device_traces"])]
    devices = {segment.get("device", 0) for segment in snapshot["segments"]}
    found = [
        _recording(snapshot, device, traces[device] if device < len(traces) else Trace(""))
        for device in sorted(devices | {*range(len(traces))})
    ]
    found = [one for one in found if len(one.events) or one.after.reserved]
    if not found:
        raise ValueError(
            "the snapshot is empty: it holds memory only of what ran after "
            "torch.cuda.memory._record_memory_history()"
        )
    return tuple(sorted(found, key=lambda one: len(one.events), reverse=True))


def _columns(trace: list[Any] | Trace, device: int) -> Trace:
    if isinstance(trace, Trace):
        return trace
    whole = Trace(f"device_traces[{device}]")
    whole.take(trace)
    return whole


def _recording(snapshot: Mapping[str, Any], device: int, entries: Trace) -> Recording:
    rules = parse_rules(snapshot.get("allocator_settings", {}))
    after = parse_segments(snapshot["segments"], device)
    before = rewind(entries, after, rules)
    started = min(entries.micros, default=0) / 1e6
    seconds = max(entries.micros, default=0) / 1e6 - started
    columns = build_columns(entries, before, rules, started, seconds)
    columns = paint(_with_steps(columns), backward_passes(columns))
    events = columns.events
    cell, cells = choose_files(events, columns.stacks)
    initial = live_blocks(before)
    told = tuple(entries.labels)
    labels, _ = label_workspaces(told, events, initial, columns.alive, {})
    failed = bool(np.any(events.action == Action.OOM))
    return Recording(
        device=Device(f"device {device} of the snapshot", device, 0, (0, 0), virtual=False),
        cell=cell,
        started=started,
        seconds=seconds,
        before=_reading(before),
        after=_reading(after),
        events=events,
        stacks=columns.stacks,
        initial=initial,
        labels=told + labels,
        cells=cells,
        failure=find_failure(_OUT_OF_MEMORY, columns, rules) if failed else None,
        notes=_notes(columns, initial),
        rules=rules,
    )


def _with_steps(columns: Columns) -> Columns:
    """The events of optimizers' steps marked, as their stacks tell them."""
    phases = np.array([*map(phase_of, columns.stacks), Phase.FORWARD], np.int8)
    return replace(columns, events=replace(columns.events, phase=phases[columns.events.stack]))


def _reading(segments: Sequence[Segment]) -> Reading:
    allocated = sum(b.size for segment in segments for b in segment.blocks if b.allocated)
    reserved = sum(segment.size for segment in segments)
    unknown = {"device_used": _NOT_TOLD, "process_used": _NOT_TOLD}
    return Reading(allocated, reserved, None, None, unknown)


def _notes(columns: Columns, initial: LiveBlocks) -> tuple[str, ...]:
    notes = []
    if len(initial.size):
        notes.append(
            f"The snapshot begins where {format_bytes(int(initial.size.sum()))} were allocated "
            "already: by what ran before its history was switched on, or what it had no room for "
            "(max_entries)."
        )
    if columns.misses:
        notes.append(
            "Some blocks could not be followed to their exact size; lines and levels before them "
            "may be off by what the allocator added."
        )
    notes.append("A snapshot has neither the code nor its tensors, so there is no advice for it.")
    return tuple(notes)
