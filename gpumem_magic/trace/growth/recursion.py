"""Calls of one function inside each other, all under way when memory ran out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.growth.ways import GRAPH, Group, holder_of, place_of
from gpumem_magic.trace.stacks import user_line
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Growth, Unit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Held, Recording, Stack

_DEEP = 8
"""Calls inside each other: fewer are the levels of a model, such as a U-Net's."""

_SHARE = 0.25
"""Of what was allocated, that they hold together."""


def held_by_calls(recording: Recording, lives: Lifetimes) -> tuple[Growth, ...]:
    """What the calls of the function that calls itself most often made, and still hold; none where
    memory did not run out inside of them."""
    failure = recording.failure
    if failure is None:
        return ()
    place = failure.stack if failure.stack >= 0 else int(lives.stack[-1]) if len(lives) else -1
    stack = recording.stacks[place] if place >= 0 else ()
    users = {recording.cell.filename, *recording.cells}
    again = Counter(frame for frame in stack if frame.filename in users)
    frame, times = max(again.items(), key=lambda item: item[1], default=(None, 0))
    if frame is None or times < _DEEP:
        return ()
    function = frame.filename, frame.function
    depths = np.array([*(_depth(each, *function) for each in lives.stacks), 0])[lives.stack]
    alive = lives.alive(failure.position - 1)
    held = alive & (lives.birth >= 0) & (depths > 0)
    calls, least = _depth(stack, *function), max(MIB, _SHARE * lives.bytes(alive))
    if lives.bytes(held) < least or 2 * len(np.unique(depths[held])) < calls:
        return ()
    begin = f"{frame.function}()"
    others = {h.address: h for h in recording.held if not h.path.startswith(begin)}
    filled = held & np.isin(lives.address, list(others))
    held &= ~filled
    found: tuple[Growth, ...] = ()
    for rows in _by_container(lives, filled, others) if lives.bytes(filled) >= least else ():
        way, size = place_of(rows), sum(int(lives.size[row]) for row, _ in rows)
        if way and size >= least:
            entries = {one.path.removesuffix(GRAPH) for _, one in rows if one}
            graph = any(one.path.endswith(GRAPH) for _, one in rows if one)
            made = user_line(recording, lives.frames(rows[0][0]))
            one = Growth.counted(Unit.PASS, way, len(entries), size, made)
            found = (*found, replace(one, graph=graph, rows=tuple(row for row, _ in rows)))
    if lives.bytes(held) < least:
        return found
    size, line = lives.bytes(held), user_line(recording, (frame,))
    growth = Growth.counted(Unit.CALL, begin, calls, size, line)
    return (*found, replace(growth, graph=bool(lives.graph[held].any())))


def _by_container(
    lives: Lifetimes, filled: NDArray[np.bool_], others: dict[int, Held]
) -> list[Group]:
    """What others than the calls hold, by what holds it."""
    groups: dict[str, Group] = {}
    for row in np.flatnonzero(filled).tolist():
        one = others[int(lives.address[row])]
        groups.setdefault(holder_of(one), []).append((row, one))
    return list(groups.values())


def _depth(stack: Stack, filename: str, function: str) -> int:
    return sum(frame.filename == filename and frame.function == function for frame in stack)
