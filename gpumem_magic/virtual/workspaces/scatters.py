"""What means by index and writes by mask count in, and what a stable logarithm of a sum of
exponentials keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.workspaces.lookups import index_put, put_sorted
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory
from gpumem_magic.virtual.workspaces.selection import scan_storage

_MEAN = "mean"

_PLAIN = 4
"""Arguments of a scatter that does not reduce."""


def scatter(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """scatter_impl of native/TensorAdvancedIndexing.cpp: where results are to be the same each
    time, a write by index."""
    how = args[4] if len(args) > _PLAIN else kwargs.get("reduce")
    if isinstance(args[3], torch.Tensor) and how in (None, "add"):
        scatter_add(memory, args, kwargs)


def scatter_add(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The same, of sums."""
    if torch.are_deterministic_algorithms_enabled():
        _scatter_by_index(memory, *args[:4])


def scatter_reduce(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """scatter_reduce_two of native/TensorAdvancedIndexing.cpp: ones are added up like the
    values."""
    written, _, _, source, how = args[:5]
    if how in ("sum", _MEAN):
        scatter_add(memory, args, kwargs)
    if how == _MEAN:
        with memory.blocks() as counts:
            counts.take(source.nbytes, written.nbytes)
            scatter_add(memory, args, kwargs)
            memory.borrow(written.numel())


def _scatter_by_index(
    memory: ScratchMemory,
    written: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
) -> None:
    """_scatter_via_index_put of native/TensorAdvancedIndexing.cpp, as torch 2.11 has it: an index
    that is expanded along all other dimensions is one of `dim` alone; else these are counted."""
    dim %= max(1, written.dim())
    others = [other for other in range(written.dim()) if other != dim]
    is_expanded = all(index.stride(other) == 0 for other in others)
    shape, strides = index.shape, source.stride()
    values = torch.empty_strided(shape, strides, dtype=source.dtype, device="meta")
    with memory.blocks() as counted:
        if is_expanded:
            n = shape[dim] if shape else 1
            put_sorted(memory, written, [*[None] * dim, index], values, n)
        else:
            for other in others:
                counted.take(shape[other] * INDEX)
            put_sorted(memory, written, [index] * written.dim(), values, index.numel())


def index_add(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Where results are to be the same each time, as a write by index that adds up, of a source
    that was multiplied before (index_add_cuda_impl of native/cuda/Indexing.cu)."""
    if torch.are_deterministic_algorithms_enabled():
        source = args[3]
        with memory.blocks() as multiplied:
            multiplied.take(source.nbytes)
            _index_put_along(memory, *args[:4], adds_up=True)


def index_copy(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The same, of values as they are (index_copy_out of native/TensorAdvancedIndexing.cpp)."""
    if torch.are_deterministic_algorithms_enabled():
        _index_put_along(memory, *args[:4], adds_up=False)


def _index_put_along(
    memory: ScratchMemory,
    written: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    *,
    adds_up: bool,
) -> None:
    indices = [None] * (dim % max(1, written.dim())) + [index]
    index_put(memory, (written, indices, source, adds_up), {})


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
