"""What means by index and writes by mask count in, and what a stable logarithm of a sum of
exponentials keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.workspaces.lookups import index_put
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory
from gpumem_magic.virtual.workspaces.selection import scan_storage

_MEAN = "mean"


def scatter_reduce(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """scatter_reduce_two of native/TensorAdvancedIndexing.cpp: ones are added up like the
    values."""
    written, _, _, source, how = args[:5]
    if how == _MEAN:
        with memory.blocks() as counts:
            counts.take(source.nbytes, written.nbytes)
            memory.borrow(written.numel())


def index_add(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Where results are to be the same each time, as a write by index that adds up
    (index_add_cuda_impl of native/cuda/Indexing.cu)."""
    if torch.are_deterministic_algorithms_enabled():
        written, dim, index, source = args[:4]
        indices = [None] * (dim % max(1, written.dim())) + [index]
        index_put(memory, (written, indices, source, True), {})


def scatter_add(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The same of one dimension (scatter_impl of native/TensorAdvancedIndexing.cpp)."""
    if args[0].dim() == 1:
        index_add(memory, args, kwargs)


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
    mask = args[1]
    shape = torch.broadcast_shapes(args[0].shape, mask.shape)
    places = shape.numel()
    with memory.blocks() as counts:
        counts.take(places * INDEX)
        counts.take(0 if mask.shape == shape and mask.is_contiguous() else places)
        memory.borrow(scan_storage(places, INDEX))


def logsumexp(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """What the operator keeps; the result comes last."""
    tensor, dims = args[:2]
    logsumexp_buffers(memory, tensor, dims, out.numel(), lambda: memory.place(out))


def logsumexp_buffers(
    memory: ScratchMemory, tensor: torch.Tensor, dims: Any, rows: int, place: Callable[[], None]
) -> None:
    """logsumexp_out_impl of native/ReduceOps.cpp: the highest value of each of `rows`, whether it
    is infinite, and exponentials of what is below it; then `place` takes the result."""
    size = tensor.itemsize
    with memory.blocks() as highest:
        highest.take(rows * size)
        memory.reduce(tensor, dims, "amax")
        with memory.blocks() as infinite:
            infinite.take(rows * size, rows)
        with memory.blocks() as exponentials:
            exponentials.take(tensor.numel() * size)
            place()
            memory.reduce(tensor, dims, "sum")
