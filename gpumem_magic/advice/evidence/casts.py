"""Finds the copies of weights in half precision that autocast keeps until its block ends."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Phase

_GRAIN = 512
"""Bytes that the allocator rounds up to."""

_SMALL = 64 * 1024
"""Sizes below are too common to tell a copy by."""

_TOGETHER = 2
"""Events per copy between the first and the last that is freed, where all are freed as one."""


def casts_of_parameters(lives: Lifetimes) -> NDArray[np.bool_]:
    """Storages at the peak that are half as large as a parameter each, were made in the forward
    pass and freed all at once; none where they are less than half of the parameters."""
    nothing = np.zeros(len(lives), bool)
    parameters = lives.size[lives.of(Category.PARAMETER) & lives.at_peak & (lives.size >= _SMALL)]
    missing = Counter(_half(size) for size in parameters.tolist())
    wanted = sum(size * count for size, count in missing.items())
    outputs = lives.of(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    candidates = lives.at_peak & (lives.born == Phase.FORWARD) & (lives.birth >= 0) & ~outputs
    found = nothing.copy()
    for deaths in _freed_together(
        lives, np.flatnonzero(candidates & np.isin(lives.size, [*missing]))
    ):
        here, left = nothing.copy(), Counter(missing)
        for storage in deaths:
            size = int(lives.size[storage])
            if left[size]:
                left[size] -= 1
                here[storage] = True
        if lives.bytes(here) > lives.bytes(found):
            found = here
    return found if 2 * lives.bytes(found) >= wanted > 0 else nothing


def _half(size: int) -> int:
    return -(-(size // 2) // _GRAIN) * _GRAIN


def _freed_together(lives: Lifetimes, storages: NDArray[np.int64]) -> list[list[int]]:
    """Storages in groups that were freed in one run of events."""
    groups: list[list[int]] = []
    for storage in sorted(storages.tolist(), key=lambda s: (int(lives.death[s]), s)):
        last = groups[-1][-1] if groups else None
        if last is not None and lives.death[storage] - lives.death[last] <= _TOGETHER:
            groups[-1].append(storage)
        else:
            groups.append([storage])
    return groups
