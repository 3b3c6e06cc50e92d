"""Reports as PyTorch's memory snapshots, for its own viewer (https://pytorch.org/memory_viz).

The format is that of `torch.cuda.memory._dump_snapshot`, written by torch/csrc/cuda/Module.cpp: the
events, and the segments as they lay after the last of them, from which viewers go back.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.allocator.pools import SMALL_SEGMENT, SMALL_SIZE
from gpumem_magic.allocator.snapshot import (
    IN_USE,
    PENDING,
    BlockState,
    Plain,
    Segment,
    plain_segment,
    with_gaps,
)
from gpumem_magic.trace.levels import follow_segments
from gpumem_magic.values.recording import Action, Category, Events, Recording, Rules, Stack
from gpumem_magic.values.report import Basis, Report

_ACTIONS = ["free_requested" if action is Action.FREE else action.name.lower() for action in Action]
_UNKNOWN = "unknown"
"""The category that PyTorch's viewer needs to know before it shows any other."""


def to_pickle(report: Report) -> bytes:
    """The snapshot of a report's device. Raises ValueError where its events are not known.

    Protocol 4: PyTorch's viewer reads none that is newer.
    """
    if report.basis is None:
        raise ValueError(f"no memory snapshot can be written: {_reason(report)}")
    return pickle.dumps(to_snapshot(report.basis), protocol=4)


def _reason(report: Report) -> str:
    lost = report.unknown.get("timeline")
    return lost or (
        "the report does not hold its events any more, as those of a .json and the oldest of a "
        "long history; measure the cell again, and save its report then"
    )


def to_snapshot(basis: Basis) -> Plain:
    """The dictionary that `torch.cuda.memory._snapshot()` would have given after the cell.

    Beside what PyTorch writes, allocations and frees have a `category`, the kind of memory, by
    which the viewer colours them, and a name in `user_metadata` where a tensor had one.
    """
    recording = basis.recording
    stacks = _Stacks(recording.stacks)
    traces: list[list[Plain]] = [[] for _ in range(recording.device.index + 1)]
    traces[-1] += _entries(basis, stacks)
    return {
        "segments": list(_segments(basis, stacks)),
        "device_traces": traces,
        "allocator_settings": _settings(recording.rules),
        "external_annotations": [],
    }


class _Stacks:
    """Stacks as lists of dictionaries; what is equal is one object, which a pickle has once."""

    def __init__(self, stacks: tuple[Stack, ...]) -> None:
        frames = {frame: None for stack in stacks for frame in stack}
        plain = {
            frame: {"name": frame.function, "filename": frame.filename, "line": frame.line}
            for frame in frames
        }
        self._lists = [*([plain[frame] for frame in stack] for stack in stacks), []]

    def __getitem__(self, index: int) -> list[Plain]:
        return self._lists[index]  # -1, the last, for none


def _settings(rules: Rules) -> Plain:
    limit = rules.max_split_size
    divisions = {str(1 << power): count for power, count in enumerate(rules.divisions)}
    return {
        "max_split_size": -1 if limit is None else limit,
        "roundup_power2_divisions": divisions,
    }


def _entries(basis: Basis, stacks: _Stacks) -> Iterator[Plain]:
    """The events, each with what it is known to be about.

    `device_free` is 0 where it is not known: the format has no word for that.
    """
    recording, events = basis.recording, basis.recording.events
    kinds, names = _kinds(basis), _names(basis)
    failure = recording.failure
    known = failure.device_free if failure else None
    completes = not (events.action == Action.FREE_COMPLETED).any()
    for row, action in enumerate(events.action.tolist()):
        entry: Plain = {
            "action": _ACTIONS[action],
            "device_free" if action == Action.OOM else "addr": int(events.address[row]),
            "size": int(events.requested[row]),
            "stream": 0,
            "time_us": round((recording.started + float(events.time[row])) * 1e6),
            "compile_context": "N/A",
            "user_metadata": names.get(row, ""),
            "frames": stacks[int(events.stack[row])],
        }
        if action == Action.OOM:
            entry["device_free"] = known or 0
        if row in kinds:
            entry["category"] = kinds[row]
        yield entry
        if completes and action == Action.FREE:
            yield entry | {"action": _ACTIONS[Action.FREE_COMPLETED]}
    yield _mark(recording)


def _mark(recording: Recording) -> Plain:
    """What taking a snapshot leaves in the history; here also that some category is unknown."""
    ended = round((recording.started + recording.seconds) * 1e6)
    place = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": ended}
    return place | {"compile_context": "N/A", "user_metadata": "", "category": _UNKNOWN}


def _kinds(basis: Basis) -> dict[int, str]:
    """The kind of memory that each row hands out or takes back."""
    words = [kind.value for kind in Category]
    lives = basis.lifetimes
    told = [words[code] for code in lives.category.tolist()]
    both = (*zip(lives.birth.tolist(), told, strict=True),)
    return dict((*both, *zip(lives.death.tolist(), told, strict=True)))


def _names(basis: Basis) -> dict[int, str]:
    """What the user calls the storage that a row hands out."""
    lives = basis.lifetimes
    named = np.flatnonzero(lives.label >= 0).tolist()
    return {int(lives.birth[one]): name for one in named if (name := lives.name(one))}


def _segments(basis: Basis, stacks: _Stacks) -> Iterator[Plain]:
    """The segments after the last event with their blocks, by address."""
    asked = _used(basis)
    blocks = sorted(asked, key=lambda block: block.address)
    by_address = {block.address: stack for block, stack in asked.items()}
    places = [block.address for block in blocks]
    for address, size, expandable, stack in _held(basis.recording):
        used = blocks[bisect_left(places, address) : bisect_left(places, address + size)]
        small = max((block.size for block in used), default=size) <= SMALL_SIZE
        pool = "small" if small or size == SMALL_SEGMENT else "large"
        whole = tuple(with_gaps(used, address, address + size))
        yield plain_segment(
            Segment(address, size, expandable, whole, pool=pool),
            basis.recording.device.index,
            stacks[stack],
            lambda at: stacks[by_address[at]],
        )


def _held(recording: Recording) -> list[tuple[int, int, bool, int]]:
    """Address, size, whether expandable, and stack of all that the allocator held at the end."""
    events, initial, older = recording.events, recording.initial, recording.initial.segments
    if older is None:  # each of the old blocks then stands for its segment
        older = np.stack([initial.address, initial.size, 0 * initial.size], axis=1)
    whole = follow_segments(older, events)
    found = [(at, size, False, stack) for at, (size, stack) in whole.items()]
    found += [(start, end - start, True, -1) for start, end in _mapped(events, older)]
    return sorted(found)


def _mapped(events: Events, older: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The mapped parts of expandable segments at the end: where more was mapped than unmapped."""
    pages = older[older[:, 2] > 0]
    rows = np.flatnonzero(_is(events, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP))
    sign = np.where(events.action[rows] == Action.SEGMENT_MAP, 1, -1)
    begin = np.concatenate([pages[:, 0], events.address[rows]])
    end = begin + np.concatenate([pages[:, 1], events.size[rows]])
    sign = np.concatenate([np.ones(len(pages), np.int64), sign])
    edges, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, place.reshape(-1), np.concatenate([sign, -sign]))
    mapped = np.concatenate([[False], np.cumsum(change) > 0])
    begins, ends = edges[mapped[1:] & ~mapped[:-1]], edges[~mapped[1:] & mapped[:-1]]
    yield from zip(begins.tolist(), ends.tolist(), strict=True)


def _is(events: Events, *actions: Action) -> NDArray[np.bool_]:
    return np.isin(events.action, actions)


def _used(basis: Basis) -> dict[BlockState, int]:
    """The blocks that may not be reused after the last event, each with its stack."""
    lives, events = basis.lifetimes, basis.recording.events
    old = len(basis.recording.initial.address)
    requested = np.concatenate([basis.recording.initial.requested, events.requested])
    row = np.where(lives.birth < 0, np.arange(len(lives)), old + lives.birth)
    ended = np.where(lives.at_end, -1, lives.death)
    waits = lives.at_end | np.isin(ended, _waiting(events))
    return {
        BlockState(
            int(lives.address[one]),
            int(lives.size[one]),
            int(requested[row[one]]),
            IN_USE if lives.at_end[one] else PENDING,
        ): int(lives.stack[one])
        for one in np.flatnonzero(waits).tolist()
    }


def _waiting(events: Events) -> list[int]:
    """The rows of frees that another stream has kept from completing until the end."""
    if not _is(events, Action.FREE_COMPLETED).any():
        return []  # the source records none: all are completed at once
    open_: dict[int, int] = {}
    for row in np.flatnonzero(_is(events, Action.FREE, Action.FREE_COMPLETED)).tolist():
        if events.action[row] == Action.FREE:
            open_[int(events.address[row])] = row
        else:
            open_.pop(int(events.address[row]), None)
    return [*open_.values()]
