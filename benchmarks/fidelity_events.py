"""What the allocator was asked, in order, with the line of the cell: to find where two ways of
running a cell part for the first time."""

from __future__ import annotations

import difflib
import json
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from gpumem_magic.values.recording import Recording

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


class UsesOfValues(TorchDispatchMode):
    """Notes when a program's way may go by values of the card, or by random numbers of the host: a
    number is read, or an operator's result is as large as values say.

    found: how many blocks the first CUDA device had handed out till then, and what was used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        self._random = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if _is_tensor(t)]
        on_card = any(t.is_cuda for t in tensors)
        is_random = any(t in self._random for t in tensors)
        if (on_card or is_random) and _goes_by_values(func, args):
            handed_out = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
            self.found.append((handed_out, str(func)))
        result = func(*args, **(kwargs or {}))
        if is_random or (torch.Tag.nondeterministic_seeded in func.tags and not on_card):
            for tensor in torch.utils._pytree.tree_leaves(result):
                if _is_tensor(tensor) and not tensor.is_cuda:
                    self._random[tensor] = True
        return result


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _goes_by_values(func: Any, args: Any) -> bool:
    if func is torch.ops.aten.index.Tensor:  # tagged for what it does with masks alone
        return any(_is_tensor(i) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    tags = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    return str(func) in _READ or any(tag in func.tags for tag in tags)


_NEAR = 6
"""Blocks handed out between a number that is read and what is asked otherwise because of it."""

_SMALL = 512
"""Bytes of a block up to which it is not looked at: the allocator's smallest."""

_READ = ("aten._local_scalar_dense.default", "aten.item.default", "aten.is_nonzero.default")


def value_between(
    real: list[Event], virtual: list[Event], uses: list[tuple[int, str]]
) -> str | None:
    """By what value the stub went another way: a result that is as large as values say, or a number
    that was read right before both sides part for the first time. None: by none."""
    sizes = [what for _, what in uses if what not in _READ]
    if sizes:
        return sizes[0]
    handed_out = sum(event[0] == "alloc" for event in real[: _parting(real, virtual)])
    after = bisect_left(uses, (handed_out + 1, ""))
    if not after or handed_out - uses[after - 1][0] > _NEAR:
        return None
    return uses[after - 1][1]


def _parting(real: list[Event], virtual: list[Event]) -> int:
    """Where `real` parts from `virtual` for the first time: at a block that is not small, or at the
    small ones before it if they differ already."""
    sides = (real, virtual)
    places = [
        [i for i, event in enumerate(side) if event[0] != "segment_alloc" and event[1] > _SMALL]
        for side in sides
    ]
    parted = _common([[side[i][:2] for i in at] for side, at in zip(sides, places, strict=True)])
    between = [
        [
            i
            for i in range(at[parted - 1] + 1 if parted else 0, (*at, len(side))[parted])
            if side[i][0] != "segment_alloc"
        ]
        for side, at in zip(sides, places, strict=True)
    ]
    small = _common([[side[i][:2] for i in at] for side, at in zip(sides, between, strict=True)])
    return between[0][small] if small < len(between[0]) else (*places[0], len(real))[parted]


def from_recording(recording: Recording) -> list[Event]:
    """From what a dry run recorded, whose events happened in a process of their own."""
    events = recording.events
    frames = [
        [{"filename": f.filename, "line": f.line, "name": f.function} for f in stack]
        for stack in recording.stacks
    ]
    columns = (events.action, events.requested, events.size, events.stack, events.address)
    return [
        (
            ACTIONS[action],
            size if action == 3 else asked,
            _place(frames[stack] if stack >= 0 else []),
            address,
        )
        for action, asked, size, stack, address in zip(*(c.tolist() for c in columns), strict=True)
        if action in ACTIONS
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
