"""What the stages of a trace know of every storage that lived, and which were alive at a moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import Attribution, attribute
from gpumem_magic.trace.owners import Owners
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.trace.peak import module_at
from gpumem_magic.trace.stacks import read_stacks
from gpumem_magic.values.findings import Block, Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.recording import Category, Phase, Recording


def find_lifetimes(
    recording: Recording,
    attribution: Attribution,
    lives: Pairing,
    owners: Owners,
    kind: NDArray[np.int8],
) -> Lifetimes:
    """Put together what the stages of a trace know of each storage."""
    end = len(recording.events)
    birth = np.where(lives.birth < 0, end, lives.birth)
    line, freed_line = _lines(attribution.line, lives)
    stack = np.append(recording.events.stack, np.int32(-1))
    step = np.append(attribution.step, -1)
    born = np.append(attribution.phase, np.int8(Phase.FORWARD))
    freed = np.append(attribution.phase, np.int8(-1))
    recorded = recording.events.recorded(birth)
    made = recording.events.made
    return Lifetimes(
        events=end,
        address=lives.address,
        size=lives.size,
        birth=lives.birth,
        death=lives.death,
        line=line,
        freed_line=freed_line,
        category=kind,
        born=born[birth],
        freed=freed[lives.death],
        step=step[birth],
        freed_step=step[lives.death],
        stack=stack[birth],
        label=np.where(owners.naming >= 0, owners.naming, owners.shaping),
        made=np.append(np.full(end, -1, np.int32) if made is None else made, np.int32(-1))[birth],
        results=recording.results,
        graph=owners.graph | recorded | _in_compiled(recording)[stack[birth]],
        stacks=recording.stacks,
        labels=recording.labels,
        sees_graphs=recording.events.graph is not None,
        modules=tuple(module_at(recording, row) for row in range(len(recording.stacks))),
    )


def _in_compiled(recording: Recording) -> NDArray[np.bool_]:
    """For each stack, and for none, whether compiled code ran that autograd knows as one operator:
    of what it makes on the way no operator of autograd tells."""
    file = "torch/_functorch/_aot_autograd/runtime_wrappers.py"
    found = [
        any(frame.function == "forward" and frame.filename.endswith(file) for frame in stack)
        for stack in recording.stacks
    ]
    return np.array([*found, False], bool)


def with_lines_of(recording: Recording, lives: Lifetimes) -> Lifetimes:
    """The same storages by the lines of another text: of this recording's cell, and its stacks."""
    line, freed_line = _lines(attribute(recording, read_stacks(recording)).line, lives)
    return replace(lives, line=line, freed_line=freed_line, stacks=recording.stacks)


def _lines(
    line: NDArray[np.int32], lives: Pairing | Lifetimes
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The line of each storage's birth and of its death, by the lines of the events."""
    birth = np.where(lives.birth < 0, len(line), lives.birth)
    return np.append(line, np.int32(BEFORE))[birth], np.append(line, np.int32(0))[lives.death]


LEAST = 0.002
"""Share of the peak that a storage must have to be kept."""

MOST = 20_000
"""Storages that are kept, the largest."""

_KINDS = tuple(Category)

_BEFORE = -1


@dataclass(frozen=True, slots=True)
class LargeStorages:
    """The storages of a cell that are large enough to be named, as columns.

    born, died: float64 seconds since the recording began; negative for what is older, infinite for
    what outlives the cell. size: int64 bytes. category: int8, the place in Category. line: int32,
    0 where none is known. owner: int32 into `owners`: name, shape, dtype, the module that made it.
    """

    born: NDArray[np.float64]
    died: NDArray[np.float64]
    size: NDArray[np.int64]
    category: NDArray[np.int8]
    line: NDArray[np.int32]
    owner: NDArray[np.int32]
    owners: tuple[tuple[str | None, tuple[int, ...] | None, str | None, str], ...]

    def at(self, seconds: float, most: int = 400) -> tuple[Block, ...]:
        """The largest storages that were alive at a moment, at most so many."""
        alive = np.flatnonzero((self.born <= seconds) & (self.died > seconds))
        largest = alive[np.argsort(-self.size[alive], kind="stable")][:most]
        return tuple(self._block(int(row)) for row in largest)

    def _block(self, row: int) -> Block:
        name, shape, dtype, module = self.owners[self.owner[row]]
        line = None if self.born[row] < 0 else int(self.line[row])
        kind = _KINDS[int(self.category[row])]
        return Block(name, int(self.size[row]), shape, dtype, kind, line, module)


def find_large_storages(recording: Recording, trace: Trace) -> LargeStorages | None:
    """The storages of a recording; None where events are missing."""
    lives = trace.lifetimes
    if lives is None:
        return None
    large = np.flatnonzero(lives.size >= LEAST * (trace.peak.allocated or 0))
    if len(large) > MOST:
        large = np.sort(large[np.argpartition(-lives.size[large], MOST)[:MOST]])
    time = np.append(recording.events.time, np.inf)
    birth = lives.birth[large]
    columns = (column[large].tolist() for column in (lives.label, lives.made, lives.stack))
    keys = [*zip(*columns, strict=True)]
    one_of = dict(zip(keys, large.tolist(), strict=True))
    numbers = {key: number for number, key in enumerate(one_of)}
    owners = tuple(
        (lives.name(i), *lives.tensor(i), module_at(recording, int(lives.stack[i])))
        for i in one_of.values()
    )
    return LargeStorages(
        born=np.where(birth < 0, -1.0, time[np.maximum(birth, 0)]),
        died=time[np.minimum(lives.death[large], len(time) - 1)],
        size=lives.size[large],
        category=lives.category[large].astype(np.int8),
        line=np.where(lives.line[large] == _BEFORE, 0, lives.line[large]).astype(np.int32),
        owner=np.array([numbers[key] for key in keys], np.int32),
        owners=owners,
    )
