"""Memory that is free, but in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.oom_text.cures import EXPANDABLE
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind
from gpumem_magic.values.findings import OutOfMemory, Trace, Way
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names

_MANY = 3
"""Blocks of one loop that are alive, from which there may be more of them."""

_FIRST_CELL = f"""\
%env {EXPANDABLE}
%gpumem --device off
%gpumem --device 240MiB"""
_GROWING = """\
kept = []
for size in (24, 32, 40, 48, 56):
    work = torch.zeros(size << 20, dtype=torch.uint8, device="cuda")
    del work
    kept.append(torch.zeros(size * 5 << 17, dtype=torch.uint8, device="cuda"))
whole = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
"""
_ENCODER = """\
def encode(lengths):
    found = []
    for length in lengths:
        hidden = torch.ones(length, 512, device="cuda")
        scale = hidden[:, 0].mean()
        del hidden
        found.append(torch.ones(length, 320, device="cuda").mul_(scale))
    return found

encoded = encode([12_000, 16_000, 20_000, 24_000, 28_000])
scores = torch.ones(32_000, 512, device="cuda")
"""


class Fragmentation(Rule):
    """An allocation failed although PyTorch held enough free memory: in pieces, none large enough.

    PyTorch's allocator takes memory from the driver in segments and cuts blocks out of them. Where
    long-lived tensors lie between short-lived ones, and sizes change from batch to batch, the gaps
    that are left fit nothing that is asked for later. With expandable segments the allocator grows
    one segment instead of taking many, so that gaps join. It is a setting of the environment, read
    when CUDA is first used: set it before torch is imported, in a notebook in its first cell, and
    restart the kernel. `torch.cuda.empty_cache()` does not help: it can give back only segments in
    which nothing lies, and the allocator has done that before it failed.
    """

    name: ClassVar[str] = "fragmentation"
    problem: ClassVar[str] = "memory ran out while enough of it lay free in pieces"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            setup="import torch",
            before=_GROWING,
            card="240MiB",
            first=_FIRST_CELL,
            results=("whole",),
            rewritten=False,
        ),
        mended(
            setup="import torch",
            before=_ENCODER,
            card="240MiB",
            first=_FIRST_CELL,
            results=("scores",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        oom = trace.oom
        if oom is None or not oom.is_in_pieces or not oom.requested:
            return
        if oom.remedy(Way.EXPANDABLE) is None or _goes_on(trace, cell, oom.line):
            return  # they are in use, or would only put off the end of a loop that leaks
        if _is_first_pass(trace.lives) or _piles_up(cell, trace.lives, oom):
            return
        yield Advice(
            self.name,
            problem=_problem(oom),
            change=(
                f"Begin the notebook with %env {EXPANDABLE} (Linux only): segments that "
                "grow leave no such gaps."
            ),
            line=oom.line,
            size=oom.reserved_free,
            price="a restart of the kernel",
        )


def _is_first_pass(lives: Lifetimes) -> bool:
    """Whether memory ran out in the first training pass, forward or backward: the rest of it takes
    more than the one block that failed."""
    recorded = lives.recorded & (lives.birth >= 0)
    under_way = recorded & (lives.death >= _last_step(lives))
    passes = np.unique(lives.step[recorded])
    return bool(under_way.any()) and len(passes) <= 1


def _piles_up(cell: Code, lives: Lifetimes, oom: OutOfMemory) -> bool:
    """Whether the loop in which memory ran out kept as much as it asked for, pass by pass, such as
    a state for each weight: there is no saying how many more were to come."""
    loop = cell.looped(oom.line)[1]
    if loop is None:
        return False
    own = lives.at_peak & (lives.birth >= 0) & np.isin(lives.line, list(lines_of(loop)))
    return int(np.count_nonzero(own & (lives.size >= (oom.requested or 0)))) >= _MANY


def _last_step(lives: Lifetimes) -> int:
    """The event at which the stretch of one phase began in which memory ran out."""
    return int(lives.birth[lives.step == lives.step.max(initial=-1)].min(initial=lives.events))


def _goes_on(trace: Trace, cell: Code, line: int | None) -> bool:
    """Whether the line is, or may be, part of a loop that was still running and leaves memory
    behind: of the cell, or of a function that the line called."""
    statement, loop = cell.looped(line)
    if statement is None or not trace.growth:
        return bool(trace.growth)
    lives, own = trace.lives, cell.cell.filename
    stacks = np.unique(lives.stack[[row for growth in trace.growth for row in growth.rows]])
    frames = (frame for one in stacks.tolist() if one >= 0 for frame in lives.stacks[one])
    if any(frame.line == line and frame.filename == own for frame in frames) or any(
        growth.line == line and not growth.cell for growth in trace.growth
    ):
        return True  # the loop is in what the line calls, or on the line itself
    return loop is not None or cell.function(statement) is not None


def _problem(oom: OutOfMemory) -> str:
    largest = "" if oom.largest_free is None else f" of at most {format_bytes(oom.largest_free)}"
    return (
        f"{oom.place} asked for {format_bytes(oom.requested or 0)} and failed, while "
        f"{format_bytes(oom.reserved_free or 0)} of what PyTorch held lay free, in pieces{largest}."
    )
