"""Tells when activations could have been given back, had nothing kept them beyond their use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Phase
from gpumem_magic.trace.lifetimes import Lifetimes


def freed_by_backward(lives: Lifetimes, also: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """When each storage would die if the first backward pass after its birth freed what a forward
    pass recorded (and `also` these storages); others die when they do: int64 events."""
    held = lives.recorded if also is None else lives.recorded | also
    born, freed = lives.born == Phase.BACKWARD, lives.freed == Phase.BACKWARD
    moments = np.concatenate([lives.birth[born], lives.death[freed]])
    steps = np.concatenate([lives.step[born], lives.freed_step[freed]])
    order = np.argsort(moments, kind="stable")
    moments, steps = moments[order], steps[order]
    ends = np.full(int(steps.max(initial=0)) + 1, -1, np.int64)
    np.maximum.at(ends, steps, moments)
    death = lives.death.copy()
    place = np.searchsorted(moments, lives.birth)
    rows = np.flatnonzero(held & ~freed & (place < len(moments)))
    death[rows] = np.minimum(death[rows], ends[steps[place[rows]]] + 1)
    return death
