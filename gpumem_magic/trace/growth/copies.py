"""Copies of a model's weights that are made one by one, such as `[p.clone() for p in parameters]`:
one set of them, or the next beside it, is no growth."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.growth.ways import PASSES
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Phase

_LEAST = 4
"""Weights."""

_EVENTS = 8
"""Of the allocator for each of them: beside what is kept, temporaries of an update come and go."""

_OWNED = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)


def copies_of_weights(lives: Lifetimes, event: int) -> NDArray[np.bool_]:
    """Of what is alive after the event, what one place made in one go or in two, in the sizes of
    weights that are alive: in several, or in that of all, and in none more often."""
    alive = lives.alive(event)
    weights = alive & lives.of(Category.PARAMETER, Category.BUFFER)
    sizes = Counter(lives.size[weights].tolist())
    own = alive & (lives.born == Phase.FORWARD) & (lives.birth >= 0) & (lives.stack >= 0)
    own &= ~lives.of(*_OWNED)
    rows = np.flatnonzero(own & np.isin(lives.size, np.array([*sizes], np.int64)))
    found = np.zeros(len(lives), bool)
    stacks, counts = np.unique(lives.stack[rows], return_counts=True)
    for stack in stacks[counts >= _LEAST].tolist():
        made = np.flatnonzero(own & (lives.stack == stack))
        sets = _in_one_go(lives, made)
        copied = [Counter(lives.size[one].tolist()) for one in sets]
        told = len(copied[0]) > 1 or copied[0] == sizes
        if len(sets) < PASSES and told and all(one <= sizes for one in copied):
            found[made] = True
    return found


def _in_one_go(lives: Lifetimes, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows in the order of their births, split where other things were made in between."""
    made = rows[np.argsort(lives.birth[rows])]
    return np.split(made, np.flatnonzero(np.diff(lives.birth[made]) > _EVENTS) + 1)


def sets_of_weights(lives: Lifetimes, rows: NDArray[np.int64]) -> tuple[int, int, int]:
    """How many sets of copies of all weights these storages are, by their sizes: whole ones, and
    those that were begun, and the bytes of one; zeros where they are something else. Where weights
    are alike, or those of another model are there, something has to come between the sets."""
    before = lives.alive(int(lives.birth[rows].min()) - 1)
    copied = Counter(lives.size[rows].tolist())
    for owned in ((Category.PARAMETER,), (Category.PARAMETER, Category.BUFFER)):
        whole = begun = 0
        weights = Counter(lives.size[before & lives.of(*owned)].tolist())
        alone = weights.keys() == copied.keys()
        weights = weights & Counter(dict.fromkeys(copied, len(lives)))
        if weights.keys() != copied.keys():
            continue
        if alone and len(weights) > 1:
            whole = min(copied[size] // many for size, many in weights.items())
            begun = max(-(-copied[size] // many) for size, many in weights.items())
        elif weights.total() >= _LEAST:
            sets = [Counter(lives.size[one].tolist()) for one in _in_one_go(lives, rows)]
            if all(one == weights for one in sets[:-1]) and sets[-1] <= weights:
                whole, begun = len(sets) - (sets[-1] != weights), len(sets)
        if whole and begun <= whole + 1:
            return whole, begun, sum(size * many for size, many in weights.items())
    return 0, 0, 0
