"""Tensors that a cell would share with other processes: their memory stays where it is, and is said
to be shared, because there are no others to share it with."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from gpumem_magic.isolation.telling import Effects

_SHARED = "_gpumem_shared"
"""The mark of a storage, whose memory no other process sees."""


def install_shared_tensors(effects: Effects) -> None:
    """Replace what moves the storage of a tensor into memory that processes share."""
    storages: Any = torch.UntypedStorage
    was_shared = storages.is_shared
    effects.wrap(storages, "share_memory_", _share)
    storages._new_shared = classmethod(_new_shared)
    kept: list[Any] = []

    def send(storage: Any) -> Any:
        if storage.device.type != "cpu":
            return reduce_storage(storage)
        kept.append(storage)
        return _received, (storage._weak_ref(),)

    ForkingPickler.register(storages, send)
    storages.is_shared = lambda storage: _SHARED in vars(storage) or was_shared(storage)


def _received(reference: int) -> Any:
    """What a queue carried: the storage itself, as both ends are here."""
    return torch.UntypedStorage._new_with_weak_ptr(reference)


def _share(original: Any, /, storage: Any) -> Any:
    if storage.device.type != "cpu" or storage.is_shared():
        return original(storage)
    setattr(storage, _SHARED, True)
    return storage


def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
    return _share(cls.share_memory_, cls(size, device=device))
