"""Every storage that lived during a cell, for those who ask "what if": when and where it was born
and given back, what it was, and how high the peak would be without it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.values.names import owner_of
from gpumem_magic.values.recording import Category, Failure, Label, Phase, Stack, Tensor

_KINDS = list(Category)

BEFORE = -1
"""The line of a storage that is older than the cell."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Storages in the order of their birth, those that were there before the cell first: columns
    of equal length.

    address, size: int64, bytes of the whole block. birth, death: int64 events; a birth of -1 is
    before the cell, a death at `events` is after it. line, freed_line: int32 line of the cell, 0
    where none is known, BEFORE for what is older. category: int8, see `of`. born, freed: int8, the
    Phase; -1 where it is never freed. step: int64, the number of the stretch of one phase (one
    call of `backward()`, say) that it was born in, -1 for what is older; freed_step: in which it
    was freed, -1 if never. stack: int32 index into `stacks`, -1 where none is known. label: int64
    index into `labels`, -1 where nobody owned it. graph: an owner carried a `grad_fn`, or autograd
    recorded the operator that made it. sees_graphs: the source saw that of every operator. made:
    int32 index into `results`, -1 where it is not known what it was made for. modules: of each
    stack, the way to the module of the user's that ran, "" where none did.
    """

    events: int
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    birth: NDArray[np.int64]
    death: NDArray[np.int64]
    line: NDArray[np.int32]
    freed_line: NDArray[np.int32]
    category: NDArray[np.int8]
    born: NDArray[np.int8]
    freed: NDArray[np.int8]
    step: NDArray[np.int64]
    freed_step: NDArray[np.int64]
    stack: NDArray[np.int32]
    label: NDArray[np.int64]
    graph: NDArray[np.bool_]
    stacks: tuple[Stack, ...]
    labels: tuple[Label, ...]
    made: NDArray[np.int32]
    results: tuple[Tensor, ...]
    sees_graphs: bool = False
    modules: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.size)

    def of(self, *categories: Category) -> NDArray[np.bool_]:
        """Which storages are of one of these categories."""
        return np.array([kind in categories for kind in _KINDS])[self.category]

    def all_of(self, rows: NDArray[np.int64], category: Category) -> bool:
        """Whether all of these storages are of a category."""
        return bool((self.category[rows] == _KINDS.index(category)).all())

    @property
    def recorded(self) -> NDArray[np.bool_]:
        """Which storages were made in a forward pass that recorded a graph, as far as known."""
        made = self.graph if self.sees_graphs else self.graph | self.of(Category.ACTIVATION)
        forward: NDArray[np.bool_] = (self.born == Phase.FORWARD) & (self.birth >= 0)
        return made & forward & ~self.of(Category.WORKSPACE)

    def name(self, storage: int) -> str | None:
        """What the user calls a storage, if anything."""
        label = self.label[storage]
        return self.labels[label].name if label >= 0 else None

    def named(self, prefix: str = "") -> NDArray[np.bool_]:
        """Which storages have a name, one that begins so."""
        names = [label.name for label in self.labels]
        found = [name is not None and name.startswith(prefix) for name in names]
        return np.array([*found, False], bool)[self.label]

    def by_owner(self, storages: NDArray[np.bool_]) -> dict[str, list[int]]:
        """These storages by the variable that their names begin with, states of an optimizer by
        that of their parameter; "" for those without one."""
        found: dict[str, list[int]] = {}
        for row in np.flatnonzero(storages).tolist():
            found.setdefault(owner_of(self.name(row) or ""), []).append(row)
        return found

    def rows(self, numbers: Sequence[int]) -> NDArray[np.bool_]:
        """Which storages these are."""
        found = np.zeros(len(self), bool)
        found[list(numbers)] = True
        return found

    def tensor(self, storage: int) -> tuple[tuple[int, ...] | None, str | None]:
        """Shape and dtype ("float32") of its owner, else of what it was made for, where known."""
        owner = self.labels[self.label[storage]] if self.label[storage] >= 0 else None
        if owner and (owner.shape is not None or owner.dtype is not None):
            return owner.shape, owner.dtype
        return self.results[self.made[storage]] if self.made[storage] >= 0 else (None, None)

    def frames(self, storage: int) -> Stack:
        """The call stack of its birth, the innermost frame first; empty where none is known."""
        stack = self.stack[storage]
        return self.stacks[stack] if stack >= 0 else ()

    def born_under(self, filename: str, lines: Container[int]) -> NDArray[np.bool_]:
        """Which storages were born while one of these lines of a file ran, or what it called."""
        by_stack = [
            any(frame.filename == filename and frame.line in lines for frame in stack)
            for stack in self.stacks
        ]
        return np.array([*by_stack, False], bool)[self.stack]

    def ran_in(self, module: str) -> NDArray[np.bool_]:
        """Which storages were made while a module ran, or one inside it."""
        inside = tuple(module + then for then in ".[")
        found = [way == module or way.startswith(inside) for way in self.modules]
        return np.array([*found, False], bool)[self.stack] if found else np.zeros(len(self), bool)

    def alive(self, event: int) -> NDArray[np.bool_]:
        """Which storages were alive right after an event (-1: before the first)."""
        return (self.birth <= event) & (self.death > event)

    def levels(self, without: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Allocated bytes before the first event and after each: int64[events + 1]; of all
        storages, or all but those of a mask."""
        size = self.size if without is None else np.where(without, 0, self.size)
        change = np.zeros(self.events + 2, np.int64)
        np.add.at(change, self.birth + 1, size)
        np.subtract.at(change, self.death + 1, size)
        return np.cumsum(change)[: self.events + 1]

    @property
    def peak_event(self) -> int:
        """The event after which allocated memory was highest; -1: it never grew."""
        return int(np.argmax(self.levels())) - 1

    def last_event(self, failure: Failure | None) -> int:
        """The event before memory ran out; where it did not, that of the peak."""
        return self.peak_event if failure is None else failure.position - 1

    @property
    def at_peak(self) -> NDArray[np.bool_]:
        """Which storages were alive at the peak."""
        return self.alive(self.peak_event)

    @property
    def at_end(self) -> NDArray[np.bool_]:
        """Which storages outlive the cell."""
        return self.death >= self.events

    def bytes(self, storages: NDArray[np.bool_]) -> int:
        """What a mask of storages takes together."""
        return int(self.size[storages].sum())

    def saved_at_peak(self, without: NDArray[np.bool_]) -> int:
        """How much lower the peak would be had the storages of a mask never been; the peak may
        then be at another moment."""
        return int(self.levels().max() - self.levels(without).max())
