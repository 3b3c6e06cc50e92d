"""Where the blocks that outlive a cell were allocated, and what they were called: remembered from
one recording to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpumem_magic.sources.stacks.callsite import call_of, line_of, unfold_all
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.recording import Action, Cell, Label, LiveBlocks, Recording, Stack


@dataclass(frozen=True, slots=True)
class AllocationSite:
    """Of a block: In[cell]:line that allocated it, None where unknown, and its last known name.

    started: when the recording began in which it was allocated; 0 where that is not known.
    """

    cell: int | None
    line: int | None
    name: str | None
    started: float = 0.0


class Remembered:
    """What recordings told of the blocks that outlive them. standing(): an object for each block
    that is there now, by address."""

    def __init__(self, standing: Callable[[], Mapping[int, object]]) -> None:
        self._standing = standing
        # by address: what stands there, its place in Category or -1, and where it was allocated
        self._facts: dict[int, tuple[object, int, AllocationSite]] = {}
        self._recorded: dict[str, float] = {}  # when each cell was last recorded

    def take(self, recording: Recording, trace: Trace) -> None:
        """Remember what a recording and its trace tell."""
        self._recorded[recording.cell.filename] = recording.started
        told, standing = _categories(trace), self._standing()
        self._facts = {
            address: (standing[address], told.get(address, -1), site)
            for address, site in sites_of(recording, self.sites()).items()
            if address in standing
        }

    def _known(self) -> list[tuple[int, tuple[object, int, AllocationSite]]]:
        """The facts of blocks that still are where they were."""
        standing = self._standing()
        return [(at, fact) for at, fact in self._facts.items() if standing.get(at) is fact[0]]

    def categories(self) -> dict[int, int]:
        """The categories of the blocks that still are where they were, by address."""
        return {at: category for at, (_, category, _) in self._known()}

    def sites(self) -> dict[int, AllocationSite]:
        """Where these blocks were allocated."""
        return {at: site for at, (_, _, site) in self._known()}

    def born_in(self, cell: Cell) -> frozenset[int]:
        """Addresses of blocks that were allocated since the cell was last recorded."""
        return born_since(self.sites(), self._recorded.get(cell.filename))

    def move(self, moved: Mapping[int, int]) -> None:
        """Follow the blocks, which are about to move, to other addresses."""
        self._facts = {moved[at]: fact for at, fact in self._known() if at in moved}


def with_categories(blocks: LiveBlocks, told: Mapping[int, int]) -> LiveBlocks:
    """The blocks with what was told of them: places in Category by address, -1 for others."""
    codes = [told.get(at, -1) for at in blocks.address.tolist()]
    return replace(blocks, category=np.array(codes, np.int8))


def _categories(trace: Trace) -> dict[int, int]:
    """Of the blocks that outlive a recording: their places in Category."""
    alive = trace.survivors
    if alive is None:
        return {}
    return dict(zip(alive.address.tolist(), alive.category.tolist(), strict=True))


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
        return cls(changes, _categories(trace), sites_of(recording, earlier))


def sites_of(
    recording: Recording, earlier: Mapping[int, AllocationSite]
) -> dict[int, AllocationSite]:
    """The sites of all blocks alive at the end of `recording`, by address.

    earlier: of the blocks that were alive when it began.
    """
    in_order = sorted(recording.labels, key=lambda label: label.position)
    named = {label.address: label for label in in_order}
    rows, untouched = _ended_with(recording)
    found: dict[int, AllocationSite] = {}
    unknown = AllocationSite(None, None, None)
    for address in untouched:
        before, name = earlier.get(address, unknown), _name(named, address)
        found[address] = before if name in (None, before.name) else replace(before, name=name)
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
