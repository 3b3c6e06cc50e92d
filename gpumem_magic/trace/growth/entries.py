"""Entries of containers, and whether they are as many as the passes that put them there."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.growth.ways import BETWEEN, PASSES, Group
from gpumem_magic.trace.passes import LoopPasses
from gpumem_magic.trace.peak import module_at
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category

_LAYERS = re.compile(r"\[(\d+)\.\.(\d+)\]")
"""How the layers of one list are written together: "model.h[0..11]"."""


def are_of_layers(passes: LoopPasses, rows: NDArray[np.int64], entries: int) -> bool:
    """Whether equal layers of one call of a model made it, one entry each, such as a cache of keys
    and values."""
    calls = passes.calls[rows]
    stacks = np.unique(passes.lives.stack[rows]).tolist()
    found = [_LAYERS.search(module_at(passes.recording, stack)) for stack in stacks]
    many = [int(each[2]) - int(each[1]) + 1 if each else 0 for each in found]
    return bool((calls == np.bincount(calls).argmax()).mean() >= 0.5) and min(many) >= entries


def are_of_calls(passes: LoopPasses, rows: NDArray[np.int64], survived: int, many: int) -> bool:
    """Whether modules left several of these entries in each of so many passes, between which
    something else was made, such as what a hook of each layer keeps."""
    inside = bool(passes.in_module[passes.lives.stack[rows]].all())
    several = PASSES <= survived <= many // 2
    return inside and several and survived == len(np.unique(passes.calls[rows]))


def count_entries(group: Group, survived: int, layers: int) -> tuple[int, int]:
    """In how many places of a container something is held: numbered ones, of a level with as many
    as `survived`, and those with keys; more of these than numbers inside of them are the passes, as
    are keys under which all was made before there was another. Of a tree, all its places. Not of
    the outer levels, of `layers`."""
    numbers: dict[int, set[str]] = {}
    keys: dict[int, dict[str, list[int]]] = {}
    ways = set()
    for row, one in group:
        places = BETWEEN.findall(one.path)[layers:] if one else []
        if places:
            ways.add(tuple(places))
        for level, place in enumerate(places):
            if place[1:-1].isdigit():
                numbers.setdefault(level, set()).add(place)
            else:
                keys.setdefault(level, {}).setdefault(place, []).append(row)
    counts = {*map(len, numbers.values())}
    if len(ways) == survived < math.prod(map(len, numbers.values())):
        return survived, 0  # places of a tree, of which not each is taken
    numbered = survived if survived in counts - {1} else max(counts, default=0)
    keyed = next((len(keys[n]) for n in sorted(keys) if len(keys[n]) >= PASSES), 0)
    outer = keys.get(0, {})
    apart = len(outer) >= PASSES and _follow_each_other(outer.values())
    return (0, keyed) if apart or len(outer) > numbered else (numbered, keyed)


def _follow_each_other(groups: Collection[list[int]]) -> bool:
    """Whether all rows of one group come before those of the next."""
    spans = sorted((min(rows), max(rows)) for rows in groups)
    return all(one[1] < other[0] for one, other in itertools.pairwise(spans))


def are_models(lives: Lifetimes, rows: NDArray[np.int64]) -> bool:
    """Whether these storages, int64 rows, all are parameters that a module made of its own."""
    if not len(rows) or not lives.all_of(rows, Category.PARAMETER):
        return False
    stacks = [lives.stacks[place] for place in np.unique(lives.stack[rows]).tolist()]
    return all(any("/torch/nn/" in f.filename.replace("\\", "/") for f in s) for s in stacks)
