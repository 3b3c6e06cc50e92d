"""What some values of a variable tell of all others: a cell's requests with the sizes that another
value would make, put to the allocator alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.allocator.caching import CachingAllocator
from gpumem_magic.allocator.script import Script

_APART = 32
"""Points of a curve differ by a 32nd at least, where there are such: nearer ones tell more of how
sizes are rounded than of how they grow."""

_MOST = 1 << 50
"""Bytes; more than any device has, and far from the end of an int64."""

_Points = dict[int, NDArray[np.int64]]
"""The bytes of each MALLOC, by value."""


class Rehearsals:
    """What dry runs with several values of a variable tell of all others.

    The requests of runs that ask for the same blocks in the same order, of other sizes, are made
    once more with sizes on the curves through theirs: through two runs straight lines, through
    three parabolas. start: the allocator that each run begins with.
    """

    def __init__(self, start: CachingAllocator) -> None:
        self._start = start
        self._whole: dict[int, Script] = {}
        self._cut: dict[int, Script] = {}

    def add(self, value: int, script: Script, fits: bool) -> None:
        """Learn of a dry run. One that went on after a request was refused tells nothing here."""
        if fits and not script.refused:
            self._whole[value] = script
        elif not fits and len(script.refused) == 1:
            self._cut[value] = script.until_refused()

    def fits(self, value: int) -> bool | None:
        """Whether the cell should fit with `value`; None where no two runs are comparable."""
        for nearest in sorted(self._whole, key=lambda known: abs(known - value)):
            script = self._whole[nearest]
            whole = {v: s.sizes() for v, s in self._whole.items() if _alike(s, script)}
            cut = {v: s.sizes() for v, s in self._cut.items() if s.begins_as(script)}
            # Of several runs that were cut, what comes after the cuts is the question.
            if len(whole) > 1 or len(cut) == 1:
                return script.fits(self._start, _sizes(value, whole, cut))
        return None


def _sizes(value: int, whole: _Points, cut: _Points) -> NDArray[np.int64]:
    """What each MALLOC asks for at `value`, from whole runs and, as far as they went, from runs
    that were cut short."""
    sizes = _through(value, whole)
    if cut:
        end = len(cut[min(cut, key=lambda known: abs(known - value))])
        points = {v: s[:end] for v, s in (whole | cut).items() if len(s) >= end}
        sizes[:end] = _through(value, points)
    return sizes


def _alike(one: Script, other: Script) -> bool:
    return len(one) == len(other) and one.begins_as(other)


def _through(value: int, points: _Points) -> NDArray[np.int64]:
    """The sizes at `value`, on the polynomials through the nearest points (Newton's form)."""
    chosen = _spread(value, points)
    columns = [points[v].astype(np.float64) for v in chosen]
    sizes = columns[0].copy()
    factor = 1.0
    for order in range(1, len(chosen)):
        columns = [
            (after - before) / (chosen[i + order] - chosen[i])
            for i, (before, after) in enumerate(pairwise(columns))
        ]
        factor *= value - chosen[order - 1]
        sizes += columns[0] * factor
    return np.clip(np.rint(sizes), 1, _MOST).astype(np.int64)


def _spread(value: int, points: _Points) -> list[int]:
    """Up to three of the values, the nearest first, not too close to each other if possible."""
    by_distance = sorted(points, key=lambda known: abs(known - value))
    chosen: list[int] = []
    for known in by_distance:
        if len(chosen) < 3 and all(abs(known - v) * _APART >= max(known, v) for v in chosen):
            chosen.append(known)
    return chosen if len(chosen) > 1 else by_distance[:2]
