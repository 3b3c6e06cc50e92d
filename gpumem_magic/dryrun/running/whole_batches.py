"""Batches of tensors on the host, taken out of them as a whole: sample by sample, as torch does it,
an epoch of 50,000 samples costs a dry run seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from gpumem_magic.virtual.storages import Storages

_SAMPLE = TensorDataset.__getitem__
_FETCH: Any = _MapDatasetFetcher.fetch


def install(storages: Storages) -> None:
    """Have each DataLoader take them so, from here on. storages: those on the device."""

    def fetch(fetcher: Any, indices: Any) -> Any:
        if fetcher.auto_collation and fetcher.collate_fn is default_collate:
            batch = _whole(fetcher.dataset, indices, storages)
            if batch is not None:
                return batch
        return _FETCH(fetcher, indices)

    _MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]


def _whole(dataset: Any, indices: Sequence[Any], storages: Storages) -> list[torch.Tensor] | None:
    """What `default_collate` makes of these samples; None where it is not sure to be the same."""
    while type(dataset) is Subset:
        indices, dataset = [dataset.indices[i] for i in indices], dataset.dataset
    if type(dataset) is not TensorDataset or TensorDataset.__getitem__ is not _SAMPLE:
        return None
    if not all(type(tensor) is torch.Tensor for tensor in dataset.tensors):
        return None
    if any(tensor.requires_grad or tensor in storages for tensor in dataset.tensors):
        return None
    count = min(len(tensor) for tensor in dataset.tensors)
    if not all(type(i) is int and 0 <= i < count for i in indices):
        return None
    places = torch.tensor(indices, device="cpu")
    return [tensor.index_select(0, places) for tensor in dataset.tensors]
