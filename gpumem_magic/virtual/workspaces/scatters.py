"""What means by index count in, and what a stable logarithm of a sum of exponentials keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.storages import Blocks, Storages

_MEAN = "mean"


class Scatters:
    """Takes the counts of `scatter_reduce` and `index_reduce`."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def scratches(self) -> dict[str, Callable[[tuple[Any, ...], dict[str, Any]], None]]:
        """What takes an operator's buffers, by its name."""
        takers = {"scatter_reduce": self._scatter, "index_reduce": self._index}
        return {f"{name}{end}": take for name, take in takers.items() for end in ("", "_")}

    def _scatter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """scatter_reduce_two of native/TensorAdvancedIndexing.cpp: ones are added up like the
        values."""
        written, _, _, source, how = args[:5]
        if how == _MEAN:
            with Blocks(self._storages) as counts:
                counts.take(source.nbytes, written.nbytes)
                self._take(written.numel())

    def _index(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """index_reduce_func_cuda_impl of native/cuda/Indexing.cu."""
        written, _, _, source, how = args[:5]
        if how == _MEAN:
            with Blocks(self._storages) as counts:
                counts.take(written.nbytes)
                self._take(source.nbytes)
                self._take(written.numel())

    def _take(self, *sizes: int) -> None:
        with Blocks(self._storages) as buffers:
            buffers.take(*sizes)


class Exponentials:
    """Places the results of `logsumexp`. reduce: takes what a reduction over dimensions needs."""

    def __init__(
        self, storages: Storages, reduce: Callable[[torch.Tensor, Any, str], None]
    ) -> None:
        self._storages = storages
        self._reduce = reduce

    def logsumexp(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """logsumexp_out_impl of native/ReduceOps.cpp: the highest values, whether they are
        infinite, and exponentials of what is below them; the result comes last."""
        tensor, dims = args[:2]
        with Blocks(self._storages) as highest:
            highest.take(out.nbytes)
            self._reduce(tensor, dims, "amax")
            with Blocks(self._storages) as infinite:
                infinite.take(out.nbytes, out.numel())
            with Blocks(self._storages) as exponentials:
                exponentials.take(tensor.numel() * out.itemsize)
                self._storages.place(out)
                self._reduce(tensor, dims, "sum")
