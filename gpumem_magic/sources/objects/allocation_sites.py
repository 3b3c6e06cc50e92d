"""Where the blocks that outlive a cell were allocated, and what they were called: remembered from
one recording to the next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpumem_magic.sources.stacks.callsite import call_of, line_of, unfold_all
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.recording import Action, Label, Recording, Stack


@dataclass(frozen=True, slots=True)
class AllocationSite:
    """Of a block: In[cell]:line that allocated it, None where unknown, and its last known name.

    started: when the recording began in which it was allocated; 0 where that is not known.
    """

    cell: int | None
    line: int | None
    name: str | None
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of the blocks that outlived a recording, by address, while the allocator stands
    at `changes`. categories: by their place in Category."""

    changes: int
    categories: Mapping[int, int]
    sites: Mapping[int, AllocationSite]

    @classmethod
    def of(
        cls, recording: Recording, trace: Trace, earlier: Mapping[int, AllocationSite], changes: int
    ) -> Told:
        """What `recording` and its trace tell; earlier: sites of what was alive before it."""
        alive = trace.survivors
        told: dict[int, int] = {}
        if alive is not None:
            pairs = zip(alive.address.tolist(), alive.category.tolist(), strict=True)
            told.update(pairs)
        return cls(changes, told, sites_of(recording, earlier))


def sites_of(
    recording: Recording, earlier: Mapping[int, AllocationSite]
) -> dict[int, AllocationSite]:
    """The sites of all blocks alive at the end of `recording`, by address.

    earlier: of the blocks that were alive when it began.
    """
    named = {label.address: label for label in _in_order(recording.labels)}
    rows, untouched = _ended_with(recording)
    found: dict[int, AllocationSite] = {}
    for address in untouched:
        before = earlier.get(address, AllocationSite(None, None, None))
        found[address] = replace(before, name=_name(named, address) or before.name)
    stacks = recording.events.stack[list(rows.values())].tolist()
    places = _places(recording, set(stacks))
    for (address, row), stack in zip(rows.items(), stacks, strict=True):
        name = _name(named, address, row)
        found[address] = AllocationSite(*places[stack], name, recording.started)
    return found


def born_since(sites: Mapping[int, AllocationSite], started: float | None) -> frozenset[int]:
    """Addresses of the blocks that were allocated in recordings that began at `started` or later;
    None: none."""
    since = math.inf if started is None else started
    return frozenset(at for at, site in sites.items() if site.started >= since)


def _in_order(labels: Iterable[Label]) -> list[Label]:
    return sorted(labels, key=lambda label: label.position)


def _name(named: Mapping[int, Label], address: int, row: int = -1) -> str | None:
    """What the block that was allocated by event `row` was called last."""
    label = named.get(address)
    return label.name if label is not None and label.position > row else None


def _ended_with(recording: Recording) -> tuple[dict[int, int], list[int]]:
    """What is alive at the end: the event that allocated each block at its address; and the
    addresses of initial blocks at which nothing happened."""
    actions, initial = recording.events.action, recording.initial.address
    rows = np.flatnonzero((actions == Action.ALLOC) | (actions == Action.FREE))[::-1]
    addresses, newest = np.unique(recording.events.address[rows], return_index=True)
    last = rows[newest]
    alive = actions[last] == Action.ALLOC
    born = dict(zip(addresses[alive].tolist(), last[alive].tolist(), strict=True))
    return born, initial[~np.isin(initial, addresses)].tolist()


def _places(
    recording: Recording, indices: Iterable[int]
) -> dict[int, tuple[int | None, int | None]]:
    """Cell and line of stacks: this cell's where it is in it, else another's."""
    wanted = dict.fromkeys(indices)
    stacks = unfold_all(
        [recording.stacks[i] if i >= 0 else () for i in wanted], recording.cell, recording.cells
    )
    return {i: _place(recording, stack) for i, stack in zip(wanted, stacks, strict=True)}


def _place(recording: Recording, stack: Stack) -> tuple[int | None, int | None]:
    cell = recording.cell
    line = line_of(stack, cell.filename)
    if line is not None:
        return cell.number, line
    called = call_of(stack, cell.filename, recording.cells)
    return (called[0].number, called[1]) if called else (None, None)
