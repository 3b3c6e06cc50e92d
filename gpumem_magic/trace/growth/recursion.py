"""Calls of one function inside each other, all under way when memory ran out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.growth.ways import GRAPH, holder_of, place_of
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
    own = (frame for frame in stack if frame.filename in users)
    again = Counter(frame for frame in own if not frame.function.startswith("<"))
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
    found = [one for one in _filled(recording, lives, filled, others) if one.size >= least]
    held &= ~filled
    if (size := lives.bytes(held)) >= least:
        of_calls = Growth.counted(Unit.CALL, begin, calls, size, user_line(recording, (frame,)))
        found.append(replace(of_calls, graph=bool(lives.graph[held].any())))
    return tuple(found)


def _filled(
    recording: Recording, lives: Lifetimes, filled: NDArray[np.bool_], others: dict[int, Held]
) -> Iterator[Growth]:
    """What the calls put into a container, which would hold it without them, too."""
    groups: dict[str, list[tuple[int, Held]]] = {}
    for row in np.flatnonzero(filled).tolist():
        one = others[int(lives.address[row])]
        groups.setdefault(holder_of(one), []).append((row, one))
    for group in groups.values():
        rows, paths = tuple(row for row, _ in group), {one.path for _, one in group}
        if way := place_of([*group]):
            count = len({path.removesuffix(GRAPH) for path in paths})
            size, made = int(lives.size[[*rows]].sum()), user_line(recording, lives.frames(rows[0]))
            growth = Growth.counted(Unit.PASS, way, count, size, made)
            graph = any(path.endswith(GRAPH) for path in paths)
            yield replace(growth, kind=group[0][1].kind, graph=graph, rows=rows)


def _depth(stack: Stack, filename: str, function: str) -> int:
    return sum(frame.filename == filename and frame.function == function for frame in stack)
