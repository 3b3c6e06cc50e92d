"""Calls of one function inside each other, all under way when memory ran out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from gpumem_magic.trace.stacks import user_line
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Growth, Unit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Recording, Stack

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
    size, calls = lives.bytes(held), _depth(stack, *function)
    if size < max(MIB, _SHARE * lives.bytes(alive)) or 2 * len(np.unique(depths[held])) < calls:
        return ()
    line, holder = user_line(recording, (frame,)), f"{frame.function}()"
    growth = Growth.counted(Unit.CALL, holder, calls, size, line)
    return (replace(growth, graph=bool(lives.graph[held].any())),)


def _depth(stack: Stack, filename: str, function: str) -> int:
    return sum(frame.filename == filename and frame.function == function for frame in stack)
