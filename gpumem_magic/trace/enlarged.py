"""Results with many times the elements of what they were made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.peak import asked_by
from gpumem_magic.trace.stacks import user_line
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Enlarged
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Expansion, Phase, Recording, Stack

EMBEDDINGS = frozenset({"embedding_dense_backward", "_embedding_bag_dense_backward"})
"""What makes the gradients of nn.Embedding and nn.EmbeddingBag."""

_LINEAR = "torch/nn/modules/linear.py"
_LARGE = 32 * MIB


def find_enlarged(recording: Recording, lives: Lifetimes) -> tuple[Enlarged, ...]:
    """Such results at the failure, or else at the peak, by operator and line; the largest first.

    What an operator made is the first storage so large born after it was seen; where none was, the
    one that memory ran out for.
    """
    failure = recording.failure
    if not recording.expansions:
        return ()
    alive = lives.alive(failure.position - 1 if failure else lives.peak_event)
    order = np.argsort(lives.birth, kind="stable")
    places = np.searchsorted(lives.birth[order], [one.position for one in recording.expansions])
    each = zip(recording.expansions, places.tolist(), strict=True)
    rows = [_first_so_large(lives, order[n : n + 16], one) for one, n in each]
    of_them = alive.copy()
    of_them[[row for row in rows if row is not None]] = False
    found: dict[tuple[str, int | None, str], Enlarged] = {}
    sums: dict[int, int] = {}
    functions = functools.cache(lambda: _functions(lives))
    for one, row in zip(recording.expansions, rows, strict=True):
        made: Enlarged | None = None
        if row is not None:
            size = int(lives.size[row])
            if not alive[row]:
                size = _of_same_size(lives, of_them, functions, row, sums)
                size = size or _as_floats(one, lives, of_them, row, sums)
            if size and _is_asked_for(one, Phase(int(lives.born[row]))):
                made = _made(recording, one, lives.frames(row), size)
        elif failure and failure.requested is not None and _is_asked_for(one, failure.phase):
            frames = recording.stacks[failure.stack] if failure.stack >= 0 else ()
            made = replace(_made(recording, one, frames, failure.requested), failed=True)
        if made is not None:
            key = made.op, made.line, made.cell
            before = found.get(key)
            size, count = (before.size, before.count) if before else (0, 0)
            found[key] = replace(made, size=made.size + size, count=count + 1)
    return tuple(sorted(found.values(), key=lambda each: -each.size))


def _first_so_large(lives: Lifetimes, rows: NDArray[np.int64], one: Expansion) -> int | None:
    return next((int(r) for r in rows if lives.size[r] >= np.prod(one.shape)), None)


def _as_floats(
    one: Expansion, lives: Lifetimes, alive: NDArray[np.bool_], row: int, sums: dict[int, int]
) -> int:
    """Bytes of one-hot rows, which are int64, after they became float32; told once for each size.

    Of what is as large then, it is what was made first."""
    size = 4 * int(np.prod(one.shape))
    if one.op != "one_hot" or size < _LARGE or size in sums:
        return 0
    alike = (lives.size >= size) & (lives.size < size + 2 * MIB)  # a block may be larger
    first = np.flatnonzero(alive & alike & (lives.birth > lives.birth[row]))
    sums[size] = int(lives.size[first[0]]) if len(first) else 0
    return sums[size]


def _of_same_size(
    lives: Lifetimes,
    alive: NDArray[np.bool_],
    functions: Callable[[], _Functions],
    row: int,
    sums: dict[int, int],
) -> int:
    """Bytes of living results that are as large as one that is gone, younger, and made by the same
    function or one that called it: what was computed of it. Each size is told once, for the first
    of its results; sums: by size."""
    size = int(lives.size[row])
    if size < _LARGE or size in sums:
        return 0
    same = alive & (lives.size == size) & (lives.birth > lives.birth[row])
    same &= (lives.born == Phase.FORWARD) & (lives.stack >= 0)
    numbers, of = functions()
    calling = [f for f in asked_by(lives.frames(row)) if not f.function.startswith("<")]
    own = [numbers[key] for f in calling if (key := (f.filename, f.function)) in numbers]
    same &= np.isin(of, [of[row], *own])
    sums[size] = lives.bytes(same)
    return sums[size]


_Functions = tuple[dict["tuple[str, str] | None", int], NDArray[np.int64]]


def _functions(lives: Lifetimes) -> _Functions:
    """A number for each function that asked for storages, and for each storage the number of its
    function."""
    asking = [asked_by(stack) for stack in (*lives.stacks, ())]
    numbers: dict[tuple[str, str] | None, int] = {}
    keys = [(frames[0].filename, frames[0].function) if frames else None for frames in asking]
    of = np.array([numbers.setdefault(key, len(numbers)) for key in keys])[lives.stack]
    return numbers, of


def _is_asked_for(one: Expansion, phase: Phase) -> bool:
    """Whether the user's operator made it: a backward pass makes gradients as large as weights, of
    which only those of embeddings could be smaller."""
    return phase == Phase.FORWARD or one.op in EMBEDDINGS


def _made(recording: Recording, one: Expansion, frames: Stack, size: int) -> Enlarged:
    line, cell = user_line(recording, frames)
    linear = any(f.filename.replace("\\", "/").endswith(_LINEAR) for f in frames)
    return Enlarged(one.op, one.shape, one.operands, size, 1, False, line, cell, linear)
