"""What means by index and writes by mask count in, and what a stable logarithm of a sum of exponentials keeps."""

from __future__ import annotations

import torch

from gpumem_magic.virtual.workspaces.scratch import Args, Kwargs, ScratchMemory
from gpumem_magic.virtual.workspaces.selection import scan_storage

_MEAN = "mean"
_COUNT = 8  # bytes


def scatter_reduce(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """scatter_reduce_two of native/TensorAdvancedIndexing.cpp: ones are added up like the
    values."""
    written, _, _, source, how = args[:5]
    if how == _MEAN:
        with memory.blocks() as counts:
            counts.take(source.nbytes, written.nbytes)
            memory.borrow(written.numel())


def index_reduce(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """index_reduce_func_cuda_impl of native/cuda/Indexing.cu."""
    written, _, _, source, how = args[:5]
    if how == _MEAN:
        with memory.blocks() as counts:
            counts.take(written.nbytes)
            memory.borrow(source.nbytes)
            memory.borrow(written.numel())


def masked_scatter(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """masked_scatter__cuda of native/cuda/IndexKernel.cpp: how many places are marked before each
    (launch_masked_scatter_kernel of native/cuda/IndexKernel.cu)."""
    places = args[0].numel()
    with memory.blocks() as counts:
        counts.take(places * _COUNT)
        memory.borrow(scan_storage(places, _COUNT))


def logsumexp(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """logsumexp_out_impl of native/ReduceOps.cpp: the highest values, whether they are
    infinite, and exponentials of what is below them; the result comes last."""
    tensor, dims = args[:2]
    with memory.blocks() as highest:
        highest.take(out.nbytes)
        memory.reduce(tensor, dims, "amax")
        with memory.blocks() as infinite:
            infinite.take(out.nbytes, out.numel())
        with memory.blocks() as exponentials:
            exponentials.take(tensor.numel() * out.itemsize)
            memory.place(out)
            memory.reduce(tensor, dims, "sum")
