"""Which optimizers keep a model's parameters: letting go of the model alone frees nothing then."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Category, Recording
from gpumem_magic.trace.lives import Lives
from gpumem_magic.trace.owners import CODE, Owners

_STATE = re.compile(r"(?:list\()?(<?\w+>?).*?\.state\[(\w+)")
_ROOT = re.compile(r"[^\W\d]\w*")


def by_root(
    recording: Recording, alive: NDArray[np.int64], owners: Owners
) -> Mapping[str, NDArray[np.int64]]:
    """The living blocks that each of the notebook's names leads to."""
    found: dict[str, list[int]] = {}
    for block in alive[owners.naming[alive] >= 0].tolist():
        root = _ROOT.match(recording.labels[owners.naming[block]].name or "")
        if root:
            found.setdefault(root.group(), []).append(block)
    return {root: np.array(blocks, np.int64) for root, blocks in found.items()}


def holders_of(
    blocks: NDArray[np.int64],
    root: str,
    recording: Recording,
    alive: NDArray[np.int64],
    lives: Lives,
    owners: Owners,
    kind: NDArray[np.int8],
) -> frozenset[str]:
    """Names of optimizers that hold, or may hold, parameters among the `blocks` of `root`.

    An optimizer's states tell whose parameters it has ("<Adam>" for one without a name); of one
    without states it counts whether it has as many bytes.
    """
    size = int(lives.size[blocks[kind[blocks] == CODE[Category.PARAMETER]]].sum())
    if not size:
        return frozenset()
    states = alive[(owners.naming[alive] >= 0) & (kind[alive] == CODE[Category.OPTIMIZER_STATE])]
    ties = _ties(recording.labels[i].name or "" for i in owners.naming[states].tolist())
    told = {name for name, _ in ties}
    optimizers = recording.names.optimizers.items()
    possible = {n for n, facts in optimizers if n not in told and facts.parameters >= size}
    return frozenset({name for name, model in ties if model == root} | possible) - {root}


def _ties(names: Iterable[str]) -> set[tuple[str, str]]:
    """Optimizer and model, as the names of states have them: "opt.state[model.weight]['step']"."""
    return {match.groups() for name in names if (match := _STATE.match(name))}  # type: ignore[misc]
