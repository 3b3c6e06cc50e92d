"""Outputs that modules keep in an attribute of theirs, beyond the call that made them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from gpumem_magic.trace.growth.ways import pattern
from gpumem_magic.trace.passes import LoopPasses
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Growth, Line, Unit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Phase, Recording

_MODULES = 3
_ATTRIBUTE = re.compile(r"\[\*\](\.(?!grad_fn\b)\w+)+$")
"""How the way ends to what one of several modules keeps, rather than a container, or a graph."""

_SHARE = 0.2
"""Of what was allocated, that modules of one kind keep together."""


def kept_by_modules(
    recording: Recording, lives: Lifetimes, lines: tuple[Line, ...]
) -> tuple[Growth, ...]:
    """By the name of the attribute, what at least three modules keep; not what a backward pass has
    yet to read, which would be there without it."""
    ways = {
        one.address: one.path
        for one in recording.held
        if one.module and not one.gradient and _ATTRIBUTE.search(pattern(one.path))
    }
    if len(ways) < _MODULES:
        return ()
    alive = lives.alive(lives.last_event(recording.failure))
    passes = LoopPasses(recording, lives, lines)
    backward = lives.birth[lives.born == Phase.BACKWARD].max(initial=-1)
    own = alive & (lives.birth >= 0) & passes.in_module[lives.stack]
    own &= ~lives.graph | (lives.birth < backward)
    own &= ~lives.of(Category.PARAMETER, Category.BUFFER, Category.GRADIENT)
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(own).tolist():
        if (way := ways.get(int(lives.address[row]))) is not None:
            found.setdefault(pattern(way), []).append(row)
    least = max(MIB, int(_SHARE * lives.bytes(alive)))
    return tuple(
        _kept(passes, way, rows)
        for way, rows in found.items()
        if len(rows) >= _MODULES and int(lives.size[rows].sum()) >= least
    )


def _kept(passes: LoopPasses, way: str, rows: list[int]) -> Growth:
    size, place = int(passes.lives.size[rows].sum()), passes.line_of(rows[0])
    return replace(Growth.counted(Unit.MODULE, way, len(rows), size, place), rows=tuple(rows))
