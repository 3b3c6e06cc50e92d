"""Which block each label of a recording means, and whose word counts where several speak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.values.recording import Category, Label

CATEGORIES = tuple(Category)
CODE = {category: code for code, category in enumerate(Category)}
NO_CATEGORY = -1


@dataclass(frozen=True, slots=True)
class Owners:
    """What the labels say of every block: columns as long as the table of blocks.

    category: int8, the place in CATEGORIES or NO_CATEGORY. naming, shaping: int64, the label that
    knows its name, its shape and dtype, or -1. graph: whether an owner carried a `grad_fn`.
    """

    category: NDArray[np.int8]
    naming: NDArray[np.int64]
    shaping: NDArray[np.int64]
    graph: NDArray[np.bool_]


def find_owners(labels: tuple[Label, ...], lives: Pairing, events: int) -> Owners:
    """Give every block what its labels say; a category beats a name, and the later the earlier."""
    category = np.full(len(lives), NO_CATEGORY, np.int8)
    naming = np.full(len(lives), -1, np.int64)
    shaping = np.full(len(lives), -1, np.int64)
    graph = np.zeros(len(lives), bool)
    blocks = _blocks(labels, lives, events)
    weakest_first = sorted(
        np.flatnonzero(blocks >= 0).tolist(),
        key=lambda i: (labels[i].category is not None, labels[i].position),
    )
    for i in weakest_first:
        label, block = labels[i], blocks[i]
        graph[block] |= label.has_graph
        if label.category is not None:
            category[block] = CODE[label.category]
        if label.name is not None:
            naming[block] = i
        if label.shape is not None or label.dtype is not None:
            shaping[block] = i
    return Owners(category, naming, shaping, graph)


def _blocks(labels: tuple[Label, ...], lives: Pairing, events: int) -> NDArray[np.int64]:
    """The block alive at each label's address at its position, or -1."""
    found = np.full(len(labels), -1, np.int64)
    address = np.array([label.address for label in labels], np.int64)
    position = np.array([label.position for label in labels], np.int64)
    place, owned = np.unique(address, return_inverse=True)
    candidates = np.flatnonzero(np.isin(lives.address, place))
    if not len(candidates):
        return found
    # One sortable number for "at this address, born by then"; births count from -1.
    span = events + 2
    births = np.searchsorted(place, lives.address[candidates]) * span + lives.birth[candidates] + 1
    order = np.argsort(births)
    last = np.searchsorted(births[order], owned * span + position, side="right") - 1
    block = candidates[order[last]]
    alive = (last >= 0) & (lives.address[block] == address) & (lives.death[block] >= position)
    found[alive] = block[alive]
    return found
