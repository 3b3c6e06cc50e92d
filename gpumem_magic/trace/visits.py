"""The events of the cell's lines, as signs of when a line ran and ran again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Action, Category, Phase, Recording
from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.lives import Lives
from gpumem_magic.trace.nesting import find_runs
from gpumem_magic.trace.owners import CODE, Owners


@dataclass(frozen=True, slots=True)
class Visits:
    """The events of the lines of one source, in order: columns of equal length.

    line: its line, 0 for an event that only shows that another source's line ran in between.
    row: the row of Stacks that answers for it. run: the number of its line's uninterrupted run.
    word: what happened, a number for each distinct allocating stack, -1 for what is no sign of a
    pass. fate: the same, and what became of the block: a pass may reach one stack several times,
    but seldom with the same fate. once: what an optimizer does, in the first pass often more.
    """

    line: NDArray[np.int32]
    row: NDArray[np.int64]
    run: NDArray[np.int64]
    word: NDArray[np.int64]
    fate: NDArray[np.int64]
    once: NDArray[np.bool_]

    def __getitem__(self, rows: NDArray[np.int64]) -> Visits:
        """The visits in these rows."""
        return Visits(
            line=self.line[rows],
            row=self.row[rows],
            run=self.run[rows],
            word=self.word[rows],
            fate=self.fate[rows],
            once=self.once[rows],
        )


def find_visits(
    recording: Recording,
    attribution: Attribution,
    lives: Lives,
    owners: Owners,
    kind: NDArray[np.int8],
) -> Visits:
    """Every birth and death on a line of the cell; a birth is the sign, a workspace none."""
    events = recording.events
    moves = (events.action == Action.ALLOC) | (events.action == Action.FREE)
    moments = np.flatnonzero(moves & (attribution.line > 0))
    line, row = attribution.line[moments], attribution.row[moments]
    block = lives.of_event[moments]
    regular = (events.action[moments] == Action.ALLOC) & (block >= 0)
    regular[regular] = kind[block[regular]] != CODE[Category.WORKSPACE]
    word = np.where(regular, events.stack[moments], -1).astype(np.int64)
    return Visits(
        line=line,
        row=row,
        run=find_runs(line, row, np.zeros(len(moments), np.int64), attribution.nesting),
        word=word,
        fate=np.where(regular, _fates(recording, lives, owners, block), -1),
        once=attribution.phase[moments] == Phase.OPTIMIZER,
    )


def _fates(
    recording: Recording, lives: Lives, owners: Owners, block: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A number for each combination of birth stack, death stack and having a name."""
    if not len(lives):
        return np.full(len(block), -1, np.int64)
    stack = np.append(recording.events.stack, -2).astype(np.int64)  # -2: never freed, or never born
    birth = np.where(lives.birth < 0, len(stack) - 1, lives.birth)
    many = len(recording.stacks) + 2
    fate = ((stack[birth] + 2) * many + stack[lives.death] + 2) * 2 + (owners.naming >= 0)
    return np.asarray(fate[block], np.int64)
