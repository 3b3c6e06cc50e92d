"""Pairs the events that allocate and free a block: all that were alive in a cell, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.values.recording import Action, Events, LiveBlocks


@dataclass(frozen=True, slots=True)
class Pairing:
    """Blocks in order of birth, the initial ones first: int64 columns of equal length.

    birth: index of the ALLOC, -1 for an initial block. death: index of the FREE, or the number of
    events for a block that outlives them. of_event: int64, the block that each event bears or ends,
    -1 for other events and for a FREE of what nobody saw being born.
    """

    address: NDArray[np.int64]
    size: NDArray[np.int64]
    birth: NDArray[np.int64]
    death: NDArray[np.int64]
    of_event: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.birth)

    def alive(self, event: int) -> NDArray[np.int64]:
        """The blocks alive right after event number `event` (-1: before the first)."""
        return np.flatnonzero((self.birth <= event) & (self.death > event))


def pair_events(events: Events, initial: LiveBlocks) -> Pairing:
    """Pair each ALLOC, and each initial block, with the FREE at its address that follows it.

    Events may be missing where a recording was cut: a birth on top of a living block ends that
    block, and a FREE without a birth ends none.
    """
    end, old = len(events), len(initial.address)
    moment = np.flatnonzero((events.action == Action.ALLOC) | (events.action == Action.FREE))
    address = np.concatenate([initial.address, events.address[moment]])
    born = np.concatenate([np.ones(old, bool), events.action[moment] == Action.ALLOC])
    moment = np.concatenate([np.full(old, -1, np.int64), moment])

    # Sorted by address and stably by time, what ends a block is the row right after its birth.
    order = np.argsort(address, kind="stable")
    ended = (address[order][1:] == address[order][:-1]) & born[order][:-1]
    first, second = order[:-1][ended], order[1:][ended]
    block = np.cumsum(born) - 1
    death = np.full(np.count_nonzero(born), end, np.int64)
    death[block[first]] = moment[second]

    births = moment[born]
    of_event = np.full(end, -1, np.int64)
    of_event[births[old:]] = np.arange(old, len(births))
    freed = ~born[second]
    of_event[moment[second[freed]]] = block[first[freed]]
    size = np.concatenate([initial.size, events.size[births[old:]]])
    return Pairing(address[born], size, births, death, of_event)
