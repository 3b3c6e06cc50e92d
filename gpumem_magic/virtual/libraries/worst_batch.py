"""The largest batch of a loader, handed out before all others: an epoch is walked on the host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from gpumem_magic.isolation.child import DryRunError

_MOST = 20_000
_SECONDS = 60.0
"""Batches that are looked at, and seconds that they may take."""


def largest_first(namespace: dict[str, Any], name: str, tell: Callable[[str], None]) -> None:
    """Let the loader of that name begin with its largest batch, in place of its first one.

    In a process that ends with the dry run; random numbers go on as if nobody had looked. Raises
    DryRunError for what is no loader, or gives no batches of tensors.
    """
    loader = namespace.get(name)
    if loader is None or not hasattr(type(loader), "__iter__") or iter(loader) is loader:
        raise DryRunError(
            f"--worst-batch {name}: {_fault(namespace, name)}; it takes a DataLoader, or a list of "
            "batches, which an earlier cell made"
        )
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    at, batch, looked, whole = _largest(loader)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if batch is None:
        raise DryRunError(f"--worst-batch {name}: it gives no batches with tensors")
    part = "" if whole else f", of the first {looked:,} (more were not looked at)"
    tell(
        f"{name} begins with its largest batch, number {at:,} of {looked:,} from 0{part}: "
        f"{', '.join(_shapes(batch))}."
    )
    _begin_with(namespace, name, loader, batch)


def _fault(namespace: dict[str, Any], name: str) -> str:
    if name not in namespace:
        return f"there is no variable {name}"
    return f"{name} is a {type(namespace[name]).__name__}, which cannot be walked twice"


def _largest(loader: Any) -> tuple[int, Any, int, bool]:
    """Its place, the batch, how many were looked at, and whether these were all."""
    at, largest, most, looked, end = 0, None, 0, 0, time.monotonic() + _SECONDS
    for place, batch in enumerate(loader):
        if place == _MOST or time.monotonic() > end:
            return at, largest, looked, False
        looked, size = place + 1, sum(tensor.nbytes for tensor in _tensors(batch))
        if size > most:
            at, largest, most = place, batch, size
    return at, largest, looked, True


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    items: Any = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, (list, tuple, Mapping)):
        for item in items:
            yield from _tensors(item)
    elif hasattr(value, "__dict__"):
        yield from _tensors(
            [v for v in vars(value).values() if isinstance(v, (torch.Tensor, dict))]
        )


def _shapes(batch: Any) -> Iterator[str]:
    for tensor in islice(_tensors(batch), 8):
        kind = str(tensor.dtype).removeprefix("torch.")
        yield f"{kind}{list(tensor.shape)}"


def _begin_with(namespace: dict[str, Any], name: str, loader: Any, batch: Any) -> None:
    if isinstance(loader, DataLoader):  # others than the cell may hold it, such as a trainer
        iterate = DataLoader.__iter__

        def begin(this: Any) -> Any:
            batches = iterate(this)
            return chain([batch], islice(batches, 1, None)) if this is loader else batches

        DataLoader.__iter__ = begin  # type: ignore[method-assign]
    else:
        namespace[name] = _Begun(loader, batch)


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
