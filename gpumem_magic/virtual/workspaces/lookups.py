"""The order in which embeddings and writes by index allocate on a GPU: they sort the indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpumem_magic.virtual.storages import Blocks
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory
from gpumem_magic.virtual.workspaces.selection import (
    SCAN_STORAGE,
    radix_sort_storage,
    unique_storage,
)

_WITHOUT_SORTING = 3072
_ROWS_OF_A_THREAD = 10
_MAX_MODE = 2


def embedding_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """embedding_dense_backward_cuda of native/cuda/Embedding.cu."""
    gradient, indices, by_frequency = args[0], args[1], args[4]
    with memory.blocks() as buffers:
        if not gradient.is_contiguous():
            buffers.take(gradient.nbytes)
        if indices.numel() <= _WITHOUT_SORTING and not by_frequency:
            memory.place(out)
            return
        _sum_rows(memory, buffers, indices, by_frequency, out)


def bag(memory: ScratchMemory, args: Args, out: tuple[torch.Tensor, ...]) -> None:
    """_embedding_bag_cuda of native/cuda/EmbeddingBag.cu; the CPU's kernel returns less."""
    weight, indices, offsets = args[:3]
    mode = args[4] if len(args) > 4 else 0
    last = args[7] if len(args) > 7 else False
    bags = offsets.numel() - int(bool(last))
    result, offset2bag, bag_size, max_indices = out
    memory.place_as(bag_size, bags * indices.itemsize)
    memory.place_as(offset2bag, indices.numel() * indices.itemsize)
    memory.place(result)
    most = bags * weight.shape[1] * indices.itemsize if mode == _MAX_MODE else 0
    memory.place_as(max_indices, most)


def bag_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """embedding_bag_backward_cuda_sum_avg of native/cuda/EmbeddingBag.cu, which always
    sorts."""
    gradient, indices, by_frequency, mode = args[0], args[1], args[6], args[7]
    with memory.blocks() as buffers:
        if not gradient.is_contiguous():
            buffers.take(gradient.nbytes)
        if mode == _MAX_MODE:
            memory.place(out)
        else:
            _sum_rows(memory, buffers, indices, by_frequency, out)


def index(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """index_cuda of native/TensorAdvancedIndexing.cpp."""
    with memory.blocks() as copies:
        copies.take(*_from_host(memory, args[1]))
        copies.take(*_like_strided(args[1]))
        memory.place(out)


def _from_host(memory: ScratchMemory, indices: Sequence[torch.Tensor | None]) -> list[int]:
    """Bytes of the copies of indices that are on the host (make_info of
    native/TensorAdvancedIndexing.cpp); masks are counted there first."""
    given = [i for i in indices if i is not None and i.dtype not in _MASKS]
    return [i.nbytes for i in given if i not in memory.storages]


def index_put(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Indices on the host are copied first."""
    with memory.blocks() as copies:
        copies.take(*_from_host(memory, args[1]))
        _write(memory, args, kwargs)


def _write(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """index_put_with_sort_kernel of native/cuda/Indexing.cu, which adds up what is written to
    the same place."""
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    written, indices, values = args[:3]
    given = [index for index in indices if index is not None]
    if not accumulates or not given or any(i.dtype in _MASKS for i in given):
        memory.borrow(*(() if accumulates else _like_strided(indices)))
        return
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    n = math.prod(shape)
    sliced = math.prod(
        size
        for place, size in enumerate(written.shape)
        if place >= len(indices) or indices[place] is None
    )
    with memory.blocks() as buffers:
        if not written.is_contiguous():
            buffers.take(written.nbytes)
        with memory.blocks() as keys:
            keys.take(n * 8)
            buffers.take(n * 8)
        if values.numel() < n * sliced or not values.is_contiguous():
            buffers.take(n * sliced * values.itemsize)
        rows = written.numel() // max(1, sliced)
        bits = max(1, (rows - 1).bit_length())
        buffers.take(n * 8, n * 8)
        _sort(memory, n, 8, bits)


def _sum_rows(
    memory: ScratchMemory,
    buffers: Blocks,
    indices: torch.Tensor,
    by_frequency: bool,
    out: torch.Tensor,
) -> None:
    """embedding_backward_cuda_kernel of native/cuda/EmbeddingBackwardKernel.cu: partial sums of
    runs of equal indices, as many as there might be."""
    n, width = indices.numel(), indices.itemsize
    buffers.take(n * width, n * width)
    _sort(memory, n, width)
    if by_frequency:
        buffers.take(n * width)
        memory.borrow(SCAN_STORAGE)
    memory.place(out)
    if n == 0:
        return
    segments = min(n, out.shape[0])
    buffers.take(n * width, 8)
    memory.borrow(n * width, unique_storage(n))
    buffers.take(segments * width, segments * width)
    memory.borrow(SCAN_STORAGE)
    partial = n // _ROWS_OF_A_THREAD + segments
    wide = max(4, out.itemsize)
    buffers.take(8, partial * width, partial * out.shape[1] * wide)


def _sort(memory: ScratchMemory, n: int, width: int, bits: int | None = None) -> None:
    memory.borrow(n * width, radix_sort_storage(n, width, width, memory.capability, bits))


def _like_strided(indices: Any) -> list[int]:
    """Bytes of the dense copies of indices that are broadcast in unlike ways: CUDA's kernels want
    all of the same strides (AdvancedIndex of native/TensorAdvancedIndexing.cpp)."""
    given = [index for index in indices if index is not None]
    if len(given) < _SEVERAL or any(index.dtype in _MASKS for index in given):
        return []
    expanded = torch.broadcast_tensors(
        *(torch.empty_strided(index.shape, index.stride(), device="meta") for index in given)
    )
    if len({index.stride() for index in expanded}) == 1:
        return []
    return [index.numel() * INDEX for index in expanded if not index.is_contiguous()]


_SEVERAL = 2
_MASKS = (torch.bool, torch.uint8)
