"""What grew until memory ran out: left by the passes of a loop, by calls inside each other, or kept
by modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem_magic.trace.growth.entries import are_models
from gpumem_magic.trace.growth.loops import left_by_passes
from gpumem_magic.trace.growth.module_outputs import kept_by_modules
from gpumem_magic.trace.growth.recursion import held_by_calls
from gpumem_magic.trace.growth.ways import PASSES
from gpumem_magic.values.findings import Growth, Line
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Recording


def find_growth(
    recording: Recording, lives: Lifetimes, lines: tuple[Line, ...]
) -> tuple[Growth, ...]:
    """Up to the failure, or else up to the peak; of each kind what grew most first."""
    passes = left_by_passes(recording, lives, lines)
    calls = held_by_calls(recording, lives)
    told = {one.holder for one in calls}
    passes = tuple(one for one in passes if one.holder not in told and (one.holder or not calls))
    held = _apart(lives, [_whole(recording, lives, one) for one in passes])
    told.update(one.holder for one in held)
    modules = kept_by_modules(recording, lives, lines)
    return (*calls, *held, *(one for one in modules if one.holder not in told))


def _apart(lives: Lifetimes, found: list[Growth]) -> list[Growth]:
    """Without those that larger ones mostly tell of: the gradients of whole models."""
    told: set[int] = set()
    kept = []
    for one in sorted(found, key=lambda each: -each.size):
        own = lives.size[[row for row in one.rows if row not in told]].sum()
        if not one.rows or 2 * own >= lives.size[list(one.rows)].sum():
            kept.append(one)
            told.update(one.rows)
    return [one for one in found if one in kept]


def _whole(recording: Recording, lives: Lifetimes, growth: Growth) -> Growth:
    """Models that nothing has a name for as yet, with their gradients and the states of their
    optimizers; without the last, which is still under way, where the cell has made no others."""
    rows = np.array(growth.rows, np.int64)
    if growth.holder or not are_models(lives, rows):
        return growth
    event = lives.last_event(recording.failure)
    own = lives.alive(event) & (lives.birth >= 0)
    last = lives.birth[rows[lives.step[rows] == lives.step[rows].max()]].min()
    before = own & (lives.birth < last)
    held = before & lives.of(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    others = before & lives.of(Category.PARAMETER)
    others[rows] = False
    if growth.passes < PASSES or others.any():
        return growth
    size, passes = lives.bytes(held), growth.passes - 1
    kept = tuple(np.flatnonzero(held).tolist())
    return replace(growth, rows=kept, size=size, passes=passes, each=size // passes)
