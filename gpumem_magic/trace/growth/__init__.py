"""What grew until memory ran out: left by the passes of a loop, by calls inside each other, or kept
by modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem_magic.trace.growth.loops import left_by_passes
from gpumem_magic.trace.growth.module_outputs import kept_by_modules
from gpumem_magic.trace.growth.recursion import held_by_calls
from gpumem_magic.values.findings import Growth, Line
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Recording


def find_growth(
    recording: Recording, lives: Lifetimes, lines: tuple[Line, ...]
) -> tuple[Growth, ...]:
    """Up to the failure, or else up to the peak; of each kind what grew most first."""
    passes = left_by_passes(recording, lives, lines)
    calls = held_by_calls(recording, lives)
    held = [_whole(recording, lives, one) for one in passes if one.holder or not calls]
    told = {one.holder for one in held}
    modules = kept_by_modules(recording, lives, lines)
    return (*calls, *held, *(one for one in modules if one.holder not in told))


def _whole(recording: Recording, lives: Lifetimes, growth: Growth) -> Growth:
    """Models that nothing has a name for as yet, with their gradients and the states of their
    optimizers, where the cell has made no others."""
    rows = list(growth.rows)
    if growth.holder or not rows or not lives.of(Category.PARAMETER)[rows].all():
        return growth
    event = recording.failure.position - 1 if recording.failure else lives.peak_event
    own = lives.alive(event) & (lives.birth >= 0)
    parameters = lives.bytes(own & lives.of(Category.PARAMETER))
    if growth.passes * (parameters - growth.size) > parameters:  # more than the next one
        return growth
    before = own & (lives.birth < lives.birth[rows].max())
    others = before & lives.of(Category.GRADIENT, Category.OPTIMIZER_STATE)
    more = [*rows, *np.flatnonzero(others).tolist()]
    size = int(lives.size[more].sum())
    return replace(growth, rows=tuple(more), size=size, each=size // growth.passes)
