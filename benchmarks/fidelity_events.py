"""What the allocator was asked, in order, with the line of the cell: to find where two ways of
running a cell part for the first time."""

from __future__ import annotations

import difflib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

Event = tuple[str, int, str, int]
"""Action, bytes as asked for, where, address."""

ACTIONS = {0: "alloc", 1: "free", 3: "segment_alloc"}
HISTORY = {"alloc": "alloc", "free_requested": "free", "segment_alloc": "segment_alloc"}


def from_history() -> list[Event]:
    """From the memory history of this process's CUDA device."""
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [
        (HISTORY[event["action"]], event["size"], _place(event.get("frames") or []), event["addr"])
        for event in trace
        if event["action"] in HISTORY
    ]


def _place(frames: list[dict[str, Any]]) -> str:
    shown = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in frames]
    inner = " < ".join(shown[:3])
    cell = next((text for text in shown if text.startswith("<cell>")), "")
    return f"{inner} < ... {cell}" if inner else "backward"


@contextmanager
def recording_virtual_gpus(path: Path) -> Iterator[None]:
    """Write to `path` what every virtual GPU that is made within is asked for, in order."""
    from gpumem_magic.allocator.caching import CachingAllocator
    from gpumem_magic.virtual.tracker import Tracker

    events: list[Event] = []
    trackers: list[Any] = []
    own, tracked = CachingAllocator.on_event, Tracker.__init__

    def heard_by(listener: Any) -> Any:
        def on_event(action: Any, address: int, size: int, requested: int, *rest: Any) -> None:
            if int(action) in ACTIONS:
                asked = size if int(action) == 3 else requested
                events.append((ACTIONS[int(action)], asked, _place_of(trackers[-1:]), address))
            if listener is not None:
                listener(action, address, size, requested, *rest)

        return on_event

    def listen(allocator: Any, listener: Any) -> None:
        own.fset(allocator, heard_by(listener))  # type: ignore[attr-defined]

    def remember(tracker: Any, *args: Any, **kwargs: Any) -> None:
        trackers.append(tracker)
        tracked(tracker, *args, **kwargs)

    CachingAllocator.on_event = own.setter(listen)  # type: ignore[attr-defined]
    Tracker.__init__ = remember  # type: ignore[method-assign]
    try:
        yield
    finally:
        CachingAllocator.on_event, Tracker.__init__ = own, tracked  # type: ignore
        path.write_text(json.dumps(events))


def _place_of(trackers: list[Any]) -> str:
    """The operator that runs, and the line of the cell that called it."""
    operator = str(trackers[0].operator) if trackers else "?"
    backward = " in backward" if torch._C._current_graph_task_id() != -1 else ""
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.endswith("cell>"):
        frame = frame.f_back
    return f"{operator}{backward}" + (f" line {frame.f_lineno}" if frame is not None else "")


def differences(real: list[Event], virtual: list[Event], most: int = 5) -> list[str]:
    """The first runs of events that differ, as text; segments left out."""
    mine = [tuple(event) for event in virtual if event[0] != "segment_alloc"]
    theirs = [tuple(event) for event in real if event[0] != "segment_alloc"]
    keys = [[event[:2] for event in side] for side in (theirs, mine)]
    start = _common(keys)
    found = []
    matcher = difflib.SequenceMatcher(
        None, keys[0][start : start + 4000], keys[1][start : start + 4000], autojunk=False
    )
    for kind, i, i2, j, j2 in matcher.get_opcodes():
        if kind == "equal":
            continue
        found.append(
            f"event {start + i}: real {_shown(theirs[start + i : start + i2])}\n"
            f"    virtual {_shown(mine[start + j : start + j2])}\n"
            f"    after {theirs[start + i - 1] if start + i else 'nothing'}"
        )
        if len(found) >= most:
            break
    return found


def at_peak(real: list[Event], virtual: list[Event], most: int = 12) -> list[str]:
    """What only one side had when it held most, the largest first; sizes that both had, in
    whatever places, are left out."""
    sides = [_alive_at_peak(events) for events in (real, virtual)]
    sizes = [Counter(event[1] for event in side) for side in sides]
    lines = []
    for name, side, more in zip(
        ("real", "virtual"), sides, (sizes[0] - sizes[1], sizes[1] - sizes[0]), strict=True
    ):
        for event in sorted(side, key=lambda each: -each[1]):
            if more[event[1]] > 0:
                more[event[1]] -= 1
                lines.append((event[1], f"only {name}: {event[1]} {event[2]}"))
    return [text for _, text in sorted(lines, key=lambda each: -each[0])[:most]]


def _alive_at_peak(events: list[Event]) -> list[Event]:
    alive: dict[int, Event] = {}
    now = highest = 0
    found: list[Event] = []
    for event in events:
        action, size, _, address = event
        if action == "alloc":
            alive[address] = event
            now += size
            if now > highest:
                highest, found = now, []
        elif action == "free" and address in alive:
            if now == highest and not found:
                found = list(alive.values())
            now -= alive.pop(address)[1]
    return found or list(alive.values())


def _common(keys: list[Any]) -> int:
    pairs = enumerate(zip(*keys, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(map(len, keys)))


def _shown(events: list[Any]) -> str:
    parts = [f"{'+' if e[0] == 'alloc' else '-'}{e[1]} ({e[2]})" for e in events[:6]]
    return "; ".join(parts) + (f"; {len(events) - 6} more" if len(events) > 6 else "") or "nothing"
