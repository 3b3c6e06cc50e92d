"""Results with many times the elements of what they were made of."""

from __future__ import annotations

import functools
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

LOOKUPS = frozenset({"index", "embedding", "index_select", "gather"})
"""What copies rows by their numbers."""

DERIVATIVES = "eager_transforms"
"""The file of torch.func whose jacrev(), jacfwd() and hessian() make a row for each number."""

_LAYERS = "torch/nn/modules/"
_MAPPED = "torch/_functorch/"
_LARGE = 32 * MIB


def find_enlarged(recording: Recording, lives: Lifetimes) -> tuple[Enlarged, ...]:
    """Such results at the failure, or else at the peak, by operator and line; the largest first.

    What an operator made is the first storage so large born after it was seen; where none was, the
    one that memory ran out for.
    """
    failure = recording.failure
    if not recording.expansions:
        return ()
    alive = lives.alive(lives.last_event(failure))
    order = np.argsort(lives.birth, kind="stable")
    places = np.searchsorted(lives.birth[order], [one.position for one in recording.expansions])
    each = zip(recording.expansions, places.tolist(), strict=True)
    rows = [_first_so_large(lives, order[n : n + 16], one) for one, n in each]
    made_by = zip(recording.expansions, rows, strict=True)
    own_rows = {
        n
        for one, n in made_by
        if n is not None and _is_asked_for(one, lives.born[n], lives.frames(n))
    }
    known = _Derived(lives, alive, own_rows)
    found: dict[tuple[str, int | None, str], Enlarged] = {}
    for one, row in zip(recording.expansions, rows, strict=True):
        made: Enlarged | None = None
        if row is not None:
            own = int(lives.size[row]) if alive[row] else 0
            if row in own_rows:
                derived = known.of(one, row)
                if own or derived:
                    frames = lives.frames(row)
                    made = _made(recording, one, frames, own + derived, derived)
        elif failure and failure.requested is not None:
            frames = recording.stacks[failure.stack] if failure.stack >= 0 else ()
            if not _is_asked_for(one, failure.phase, frames):
                continue
            made = replace(_made(recording, one, frames, failure.requested), failed=True)
        if made is not None:
            key = made.op, made.line, made.cell
            before = found.get(key)
            if before:
                size, derived = made.size + before.size, made.derived + before.derived
                made = replace(made, size=size, derived=derived, count=before.count + made.count)
            found[key] = made
    return tuple(sorted(found.values(), key=lambda each: -each.size))


def _first_so_large(lives: Lifetimes, rows: NDArray[np.int64], one: Expansion) -> int | None:
    return next((int(r) for r in rows if lives.size[r] >= np.prod(one.shape)), None)


class _Derived:
    """What was computed of large results, element by element: what is younger, of as many elements,
    and made by the same function or one that called it; by the backward pass, of any. Of rows that
    were looked up, what layers make of each counts, too. Each number of elements is told once, for
    the first of its results."""

    def __init__(self, lives: Lifetimes, alive: NDArray[np.bool_], own: set[int]) -> None:
        self._lives = lives
        self._rest = alive & (lives.stack >= 0) & (lives.birth >= 0)
        self._rest[list(own)] = False
        shapes = [shape for shape, _ in lives.results]
        self._shapes = [*(shape or () for shape in shapes), (-1,)]
        self._counts = np.array([np.prod(s) for s in self._shapes], np.float64)
        self._elements = self._counts[lives.made]
        self._told: set[int] = set()

    @functools.cached_property
    def _functions(self) -> tuple[dict[tuple[str, str] | None, int], NDArray[np.int64]]:
        """A number for each function that asked for storages, and for each storage the number of
        its function."""
        asking = [asked_by(stack) for stack in (*self._lives.stacks, ())]
        numbers: dict[tuple[str, str] | None, int] = {}
        keys = [(frames[0].filename, frames[0].function) if frames else None for frames in asking]
        of = np.array([numbers.setdefault(key, len(numbers)) for key in keys])[self._lives.stack]
        return numbers, of

    def of(self, one: Expansion, row: int) -> int:
        """Bytes of what was computed of this result."""
        lives, size, count = self._lives, int(self._lives.size[row]), int(np.prod(one.shape))
        if size < _LARGE or count in self._told or one.op in EMBEDDINGS:
            return 0
        self._told.add(count)
        same = self._rest & ((self._elements == count) | (lives.size == size))
        if one.op in LOOKUPS:
            same |= self._rest & self._of_rows(count // one.shape[-1])
        same &= lives.birth > lives.birth[row]
        numbers, of = self._functions
        calling = [f for f in asked_by(lives.frames(row)) if not f.function.startswith("<")]
        own = [numbers[key] for f in calling if (key := (f.filename, f.function)) in numbers]
        near = np.isin(of, [of[row], *own]) | (one.op == "one_hot")  # a model is given them
        return lives.bytes(same & (near | (lives.born == Phase.BACKWARD)))

    def _of_rows(self, rows: int) -> NDArray[np.bool_]:
        """Which results have one vector for each of so many rows, in any of their dimensions."""
        widths = (self._counts / rows).tolist()
        found = [width in shape for width, shape in zip(widths, self._shapes, strict=True)]
        return np.array(found)[self._lives.made]


def _is_asked_for(one: Expansion, phase: int, frames: Stack) -> bool:
    """Whether the user's operator made it: a backward pass makes gradients as large as weights, of
    which only those of embeddings, and those that vmap() makes for each row, could be smaller."""
    mapped = one.op == "bmm" and any(_MAPPED in f.filename.replace("\\", "/") for f in frames)
    return phase == Phase.FORWARD or one.op in EMBEDDINGS or mapped


def _made(
    recording: Recording, one: Expansion, frames: Stack, size: int, derived: int = 0
) -> Enlarged:
    line, cell = user_line(recording, frames)
    paths = [frame.filename.replace("\\", "/") for frame in frames]
    layer = next((path.partition(_LAYERS)[2] for path in paths if _LAYERS in path), "")
    if paths and paths[0].endswith(f"{_MAPPED}{DERIVATIVES}.py"):
        layer = f"{DERIVATIVES}.py"
    count = int(size > derived)
    return Enlarged(
        one.op, one.shape, one.operands, size, count, False, line, cell, layer[:-3], derived
    )
