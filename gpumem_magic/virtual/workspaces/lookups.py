"""The order in which embeddings and writes by index allocate on a GPU: they sort the indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpumem_magic.virtual.storages import Blocks
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory
from gpumem_magic.virtual.workspaces.selection import (
    distinct_storage,
    radix_sort_storage,
    scan_by_key_storage,
    scan_storage,
    sort_slices,
    unique_storage,
)

_Indices = Sequence[torch.Tensor | None]

_WITHOUT_SORTING = 3072
_ROWS_OF_A_THREAD = 10
_MAX_MODE = 2


def embedding_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """embedding_dense_backward_cuda of native/cuda/Embedding.cu."""
    sorts = args[1].numel() > _WITHOUT_SORTING or args[4]
    _backward(memory, args, args[4], sorts, out)


def embedding_renorm(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """embedding_renorm_cuda_ of native/cuda/Embedding.cu: the indices sorted, and each once."""
    indices = args[1]
    with memory.blocks() as sorted_ones:
        sorted_ones.take(indices.nbytes)
        with memory.blocks() as places:
            places.take(indices.numel() * INDEX)
            sort_slices(memory, 1, indices.numel(), indices.itemsize)
        sorted_ones.take(indices.nbytes)
        with memory.blocks() as count:
            count.take(INDEX)
            memory.borrow(distinct_storage(indices.numel(), indices.itemsize))


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
    _backward(memory, args, args[6], args[7] != _MAX_MODE, out)


def _backward(
    memory: ScratchMemory, args: Args, by_frequency: bool, sorts: bool, out: torch.Tensor
) -> None:
    gradient, indices = args[:2]
    with memory.blocks() as buffers:
        if not gradient.is_contiguous():
            buffers.take(gradient.nbytes)
        if sorts:
            _sum_rows(memory, buffers, indices, by_frequency, out)
        else:
            memory.place(out)


def index(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """index_cuda of native/TensorAdvancedIndexing.cpp."""
    with memory.blocks() as copies:
        found = out.numel() // max(1, _sliced(args[0], args[1]))
        copies.take(*_made_of(memory, args[1], found))
        copies.take(*_like_strided(args[1]))
        memory.place(out)


def _made_of(memory: ScratchMemory, indices: _Indices, found: int) -> list[int]:
    """Bytes of the copies of indices that are on the host, and of what becomes of masks: `found`
    indices in each dimension (make_info of native/TensorAdvancedIndexing.cpp)."""
    return [
        found * index.dim() * INDEX if index.dtype in _MASKS else index.nbytes
        for index in indices
        if index is not None and (index.dtype in _MASKS or index not in memory.storages)
    ]


def _sliced(tensor: torch.Tensor, indices: _Indices) -> int:
    """Elements of `tensor` at each index: of dimensions without one."""
    given = [(i.dim() if i.dtype in _MASKS else 1) if i is not None else 0 for i in indices]
    kept, place = 1, 0
    for dims in given:
        kept *= 1 if dims else tensor.shape[place]
        place += dims or 1
    return kept * math.prod(tensor.shape[place:])


def index_put(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """_index_put_impl_ of native/TensorAdvancedIndexing.cpp: a number of the host is copied
    first. What is to come out the same each time is sorted, too."""
    written, indices, values = args[:3]
    given = [index for index in indices if index is not None]
    masks = [index for index in given if index.dtype in _MASKS]
    if not given:
        return
    found = values.numel() // max(1, _sliced(written, indices))
    if masks and values.numel() == 1:
        if masks[0] in memory.storages:
            return  # how many it finds is not known
        found = int(masks[0].sum())
    with memory.blocks() as copies:
        copies.take(0 if values in memory.storages else values.nbytes)
        adds_up = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        is_sorted = torch.are_deterministic_algorithms_enabled() and values.numel() > 1
        if not (adds_up or is_sorted):
            copies.take(*_made_of(memory, indices, found), *_like_strided(indices))
            return
        if not masks:
            found = math.prod(torch.broadcast_shapes(*(index.shape for index in given)))
        put_sorted(memory, written, indices, values, found)


def put_sorted(
    memory: ScratchMemory,
    written: torch.Tensor,
    indices: _Indices,
    values: torch.Tensor,
    n: int,
) -> None:
    """index_put_with_sort_kernel of native/cuda/Indexing.cu, which brings together what is written
    to the same place, of `n` places. Indices of the host are made into one number there."""
    sliced = _sliced(written, indices)
    with memory.blocks() as buffers:
        if not written.is_contiguous():
            buffers.take(written.nbytes)
        is_first = True
        for index in (index for index in indices if index is not None):
            for _ in range(index.dim() if index.dtype in _MASKS else 1):
                with memory.blocks() as addend, memory.blocks() as remainder:
                    remainder.take(n * 8 if index in memory.storages else 0)
                    (buffers if is_first else addend).take(n * 8)
                is_first = False
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
        for _ in range(2):
            memory.borrow(scan_by_key_storage(n, width))
    memory.place(out)
    if n == 0:
        return
    segments = min(n, out.shape[0])
    buffers.take(n * width, 8)
    memory.borrow(n * width, unique_storage(n, width))
    buffers.take(segments * width, segments * width)
    memory.borrow(scan_storage(segments, width))
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
