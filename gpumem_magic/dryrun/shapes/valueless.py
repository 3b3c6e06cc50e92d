"""Tensors without values: the memory behind them is never touched, so it costs nothing."""

from __future__ import annotations

import functools
import mmap
import sys
from typing import Any

import torch

from gpumem_magic.sources.collected import Deaths
from gpumem_magic.virtual.storages import storage_id

MOST_FLOATS = 2**16
"""Bytes of operands and results up to which values are computed: they cost less than they tell."""

_MAPPED_FROM = 2**16
"""Bytes from which a storage is mapped."""

_ARENA, _OWN_FROM = 2**30, 2**28
"""Bytes of a mapping that storages share, and from which one has its own. To map takes four times
as long as to take a part, and a process may have 65,530 mappings (vm.max_map_count)."""

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Python 3.10 has no name for it."""

_MAPPING: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE}
    if sys.platform != "win32"
    else {}
)


def untouched(nbytes: int) -> torch.UntypedStorage:
    """A storage on the host that reads as zeros and takes no memory until someone writes to it."""
    if nbytes < _MAPPED_FROM:
        return torch.zeros(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
    return torch.frombuffer(mmap.mmap(-1, nbytes, **_MAPPING), dtype=torch.uint8).untyped_storage()


def tensor_over(
    storage: torch.UntypedStorage, dtype: torch.dtype, size: Any, stride: Any, offset: int = 0
) -> torch.Tensor:
    """A tensor of this geometry over `storage`."""
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, size, stride)


class Valueless:
    """The storages whose contents mean nothing. A tensor is valueless as its storage is."""

    def __init__(self) -> None:
        self._marks = Deaths(self._died)
        self._arena, self._used = untouched(0), 0
        # By storage, until something is written to it: of `Bounds`, `MostlyOne` and `Sampled`.
        self.ends: dict[int, tuple[Any, Any]] = {}
        self.numbers: dict[int, tuple[torch.dtype, float, int, Any]] = {}
        self.shares: dict[int, dict[Any, tuple[int, Any]]] = {}
        self.asked: dict[int, dict[Any, set[float]]] = {}
        self.contents: dict[int, object] = {}
        self.places: dict[int, tuple[object, float, int]] = {}
        self._told: tuple[dict[int, Any], ...] = (
            self.ends,
            self.numbers,
            self.shares,
            self.asked,
            self.contents,
            self.places,
        )

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return storage_id(tensor) in self._marks

    def blank(self, nbytes: int) -> torch.UntypedStorage:
        """A storage of unknown contents, which takes no memory."""
        storage = self._part(nbytes) if _MAPPED_FROM <= nbytes < _OWN_FROM else untouched(nbytes)
        self.mark(storage)
        return storage

    def _part(self, nbytes: int) -> torch.UntypedStorage:
        """Of the mapping that is shared; never used before, so that it reads as zeros. The mapping
        lives as long as one of its parts."""
        start = self._used
        end = start + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if end > self._arena.nbytes():
            self._arena = untouched(_ARENA)
            start, end = 0, end - start
        self._used = end
        part: torch.UntypedStorage = self._arena[start : start + nbytes]
        return part

    def written(self, tensor: torch.Tensor) -> None:
        """Code that no operator tells of may have written to `tensor`."""
        self.mark(tensor.untyped_storage())

    def mark(self, storage: torch.UntypedStorage) -> None:
        """From here on the contents of `storage` mean nothing."""
        key = storage._cdata
        for each in self._told:
            each.pop(key, None)
        if key not in self._marks:
            self._marks.expect(storage)

    def _died(self, key: int) -> None:
        for each in self._told:
            each.pop(key, None)

    def make(self, dtype: torch.dtype, size: Any, stride: Any) -> torch.Tensor:
        """A valueless tensor of this geometry (elements) on the host."""
        return tensor_over(self.blank(_span(size, stride) * dtype.itemsize), dtype, size, stride)


@functools.lru_cache(maxsize=10_000)
def _span(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last."""
    return 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
