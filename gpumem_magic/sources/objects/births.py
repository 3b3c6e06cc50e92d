"""Where the blocks that outlive a cell were allocated, and what they were called: remembered from
one recording to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpumem_magic.sources.stacks.callsite import call_of, line_of, unfold
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.recording import Action, Label, Recording, Stack


@dataclass(frozen=True, slots=True)
class Birth:
    """Of a block: In[cell]:line that allocated it, None where unknown, and its last known name."""

    cell: int | None
    line: int | None
    name: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of the blocks that outlived a recording, by address, while the allocator stands
    at `changes`. categories: by their place in Category. new: those allocated in the recording,
    which was of the cell whose frames carry `filename`."""

    changes: int
    categories: Mapping[int, int]
    births: Mapping[int, Birth]
    filename: str
    new: frozenset[int]

    @classmethod
    def of(
        cls, recording: Recording, trace: Trace, earlier: Mapping[int, Birth], changes: int
    ) -> Told:
        """What `recording` and its trace tell; earlier: births of what was alive before it."""
        alive = trace.survivors
        told: dict[int, int] = {}
        if alive is not None:
            pairs = zip(alive.address.tolist(), alive.category.tolist(), strict=True)
            told.update(pairs)
        births, new = births_of(recording, earlier), frozenset(born_within(recording))
        return cls(changes, told, births, recording.cell.filename, new)


def births_of(recording: Recording, earlier: Mapping[int, Birth]) -> dict[int, Birth]:
    """The births of all blocks alive at the end of `recording`, by address.

    earlier: of the blocks that were alive when it began.
    """
    named = {label.address: label for label in _in_order(recording.labels)}
    rows = _last_rows(recording)
    places: dict[int, tuple[int | None, int | None]] = {}
    found: dict[int, Birth] = {}
    for address in {*recording.initial.address.tolist(), *rows}:
        row = rows.get(address)
        if row is None:
            before = earlier.get(address, Birth(None, None, None))
            found[address] = Birth(before.cell, before.line, _name(named, address) or before.name)
        elif recording.events.action[row] == Action.ALLOC:
            stack = int(recording.events.stack[row])
            if stack not in places:
                places[stack] = _place(recording, stack)
            found[address] = Birth(*places[stack], _name(named, address, row))
    return found


def born_within(recording: Recording) -> list[int]:
    """Addresses of the blocks alive at its end that were allocated in it."""
    rows, actions = _last_rows(recording), recording.events.action
    return [address for address, row in rows.items() if actions[row] == Action.ALLOC]


def _in_order(labels: Iterable[Label]) -> list[Label]:
    return sorted(labels, key=lambda label: label.position)


def _name(named: Mapping[int, Label], address: int, row: int = -1) -> str | None:
    """What the block that was allocated by event `row` was called last."""
    label = named.get(address)
    return label.name if label is not None and label.position > row else None


def _last_rows(recording: Recording) -> dict[int, int]:
    """The last event of each address that took or gave back its block."""
    actions = recording.events.action
    rows = np.flatnonzero((actions == Action.ALLOC) | (actions == Action.FREE))
    return dict(zip(recording.events.address[rows].tolist(), rows.tolist(), strict=True))


def _place(recording: Recording, index: int) -> tuple[int | None, int | None]:
    """Cell and line of a stack: this cell's where it is in it, else another's."""
    cell, cells = recording.cell, recording.cells
    stack: Stack = recording.stacks[index] if index >= 0 else ()
    stack = unfold(stack, cell, cells)
    line = line_of(stack, cell.filename)
    if line is not None:
        return cell.number, line
    called = call_of(stack, cell.filename, cells)
    return (called[0].number, called[1]) if called else (None, None)
