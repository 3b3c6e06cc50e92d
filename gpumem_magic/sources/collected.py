"""What is collected on a device while a cell runs: events as rows, the deaths of storages."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gpumem_magic.sources import torch_release
from gpumem_magic.sources.stacks.callsite import phase_of
from gpumem_magic.values.recording import Events, Phase, Stack

Row = tuple[int, int, int, int, int, bool, float, bool]
"""action, address, size, requested, index of the stack, in backward, time, records a graph; a
tuple, as one is made for every tensor of the cell."""

_WRAPPERS_DIE_FIRST = torch_release() < (2, 10)
"""Python's collector calls the storage of a tensor dead where only garbage refers to the object
that stands for it in Python (such as torch.load leaves), up to torch 2.9."""


def _first_word(storage: torch.UntypedStorage) -> int | None:
    return ctypes.c_void_p.from_address(storage._cdata).value


_STORAGES = _first_word(torch.UntypedStorage(0))  # which lives until it has been read
"""What each storage in C++ begins with: the address of its class's functions."""

_ROW = np.dtype("i1, i8, i8, i8, i4, ?, f8, ?")
_ROW.names = "action", "address", "size", "requested", "stack", "backward", "time", "graph"


class Death(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage that remembers which one it was."""

    __slots__ = ("key",)
    key: int


class Deaths(dict[int, Death]):
    """The storages that are waited for, by their `_cdata`; tell: called with that of one that has
    died."""

    def __init__(self, tell: Callable[[int], object]) -> None:
        super().__init__()
        self._tell = tell

    def expect(self, storage: torch.UntypedStorage) -> None:
        """Wait for the storage's death."""
        key = storage._cdata
        self[key] = death = Death(storage, self._died)
        death.key = key

    def catch_up(self) -> None:
        """Tell of those that died while nobody stood before Ctrl-C: Python drops it in a callback,
        and the callback with it."""
        for death in list(self.values()):  # others may die meanwhile
            if death() is None:
                self._died(death)

    def _died(self, death: Death) -> None:
        key = death.key
        if self.get(key) is not death:
            return  # caught up with
        if _WRAPPERS_DIE_FIRST and _lives_on(key):
            self.expect(torch.UntypedStorage._new_with_weak_ptr(key))
            return
        del self[key]
        self._tell(key)


def _lives_on(key: int) -> bool:
    """Whether others hold the storage than the object that dies. It may be freed: then its first
    bytes are the heap's."""
    is_there = ctypes.c_void_p.from_address(key).value == _STORAGES
    return is_there and torch._C._storage_Use_Count(key) > 1


def events_of(rows: Sequence[Row], stacks: tuple[Stack, ...]) -> Events:
    """The rows as columns. The phase is that of the stack, but in backward passes."""
    columns = np.array(rows, _ROW)
    index = np.ascontiguousarray(columns["stack"])
    phases = np.array([phase_of(s) for s in stacks], np.int8)
    phase = phases[index] if len(phases) else np.zeros(0, np.int8)
    names = "action", "address", "size", "requested", "time", "graph"
    return Events(
        **{name: np.ascontiguousarray(columns[name]) for name in names},
        stack=index,
        phase=np.where(columns["backward"], np.int8(Phase.BACKWARD), phase),
    )


def tensors_in(result: Any) -> Iterator[torch.Tensor]:
    """The tensors among what an operator gives: one, or sequences of them."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from tensors_in(item)
