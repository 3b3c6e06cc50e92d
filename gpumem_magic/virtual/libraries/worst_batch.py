"""The largest batch of a loader, handed out before all others: an epoch is walked on the host."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, islice
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from gpumem_magic.isolation.child import DryRunError
from gpumem_magic.sources.objects.namespaces import locals_of
from gpumem_magic.sources.stacks.frames import outwards

_MOST = 20_000
_MOST_BYTES = 2**32
"""Batches that are looked at, and bytes of their tensors, after which no more are."""

_DEPTH = 4
"""How far tensors are looked for in a batch: of PyTorch Geometric they lie in two objects."""


def largest_first(
    namespace: dict[str, Any], name: str, notes: list[str], assigned: Collection[str]
) -> None:
    """Let the loader of that name begin with its largest batch, in place of its first one.

    In a process that ends with the dry run; random numbers go on as if nobody had looked. notes:
    where it is said. assigned: names that the cell assigns itself. Raises DryRunError for what is
    no loader, or gives no batches of tensors.
    """
    if name in assigned:
        _begin_when_walked(name, notes)
        return
    loader = namespace.get(name)
    if loader is None or not hasattr(type(loader), "__iter__") or iter(loader) is loader:
        raise DryRunError(
            f"--worst-batch {name}: {_fault(namespace, name)}; it takes a DataLoader, or a list of "
            "batches, which an earlier cell made"
        )
    batch = _found(loader, name, notes)
    if isinstance(loader, DataLoader):  # others than the cell may hold it, such as a trainer
        _begin(lambda this: batch if this is loader else None)
    else:
        namespace[name] = _Begun(loader, batch)


def _begin_when_walked(name: str, notes: list[str]) -> None:
    """For a loader that is yet to be made: it is looked through when it is first walked."""
    known: list[tuple[Any, Any]] = []
    never = f"--worst-batch {name}: the cell walked no DataLoader of that name."
    notes.append(never)

    def first(this: Any) -> Any:
        if not _is_named(name, this, sys._getframe(2)):
            return None
        if not known or known[-1][0] is not this:
            known.append((this, _found(iterate(this), name, notes)))
            notes[:] = [note for note in notes if note != never]
        return known[-1][1]

    iterate = _begin(first)


def _is_named(name: str, value: Any, frame: FrameType | None) -> bool:
    """Whether a function that is running, or the cell, calls it so."""
    return any(locals_of(each).get(name) is value for each in outwards(frame))


def _found(loader: Any, name: str, notes: list[str]) -> Any:
    """The largest batch, of which a note tells."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    at, batch, looked, whole = _largest(loader)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if batch is None:
        raise DryRunError(f"--worst-batch {name}: it gives no batches with tensors")
    part = "" if whole else f", of the first {looked:,} (more were not looked at)"
    notes.append(
        f"{name} begins with its largest batch, number {at:,} of {looked:,} from 0{part}: "
        f"{', '.join(_shapes(batch))}."
    )
    return batch


def _fault(namespace: dict[str, Any], name: str) -> str:
    if name not in namespace:
        return f"there is no variable {name}"
    return f"{name} is a {type(namespace[name]).__name__}, which cannot be walked twice"


def _largest(loader: Any) -> tuple[int, Any, int, bool]:
    """Its place, the batch, how many were looked at, and whether these were all."""
    at, largest, most, looked, walked = 0, None, 0, 0, 0
    for place, batch in enumerate(loader):
        if place == _MOST or walked > _MOST_BYTES:
            return at, largest, looked, False
        looked, size = place + 1, sum(tensor.nbytes for tensor in _tensors(batch))
        walked += size
        if size > most:
            at, largest, most = place, batch, size
    return at, largest, looked, True


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    items = value if isinstance(value, (list, tuple, Mapping)) else getattr(value, "__dict__", ())
    for item in (items.values() if isinstance(items, Mapping) else items) if depth else ():
        yield from _tensors(item, depth - 1)


def _shapes(batch: Any) -> Iterator[str]:
    for tensor in islice(_tensors(batch), 8):
        kind = str(tensor.dtype).removeprefix("torch.")
        yield f"{kind}{list(tensor.shape)}"


def _begin(first: Callable[[Any], Any]) -> Any:
    """Let DataLoaders begin with what `first` tells for them, if anything; how they did before."""
    iterate = DataLoader.__iter__

    def begin(this: Any) -> Any:
        batch = first(this)
        batches = iterate(this)
        return batches if batch is None else chain([batch], islice(batches, 1, None))

    DataLoader.__iter__ = begin  # type: ignore[method-assign]
    return iterate


class _Begun:
    """A loader of any other kind, with another first batch."""

    def __init__(self, loader: Any, batch: Any) -> None:
        self._loader = loader
        self._batch = batch

    def __iter__(self) -> Iterator[Any]:
        return chain([self._batch], islice(self._loader, 1, None))

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)
