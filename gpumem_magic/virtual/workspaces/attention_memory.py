"""What the fused attention kernels take besides their results, in bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.workspaces.scratch import Args, Kwargs, ScratchMemory

_BLOCK = 64
"""Rows of queries, or of keys, that a thread block of the smaller kernels works on."""

_COUNTERS = 4
"""GradQTempStorage of mem_eff_attention/kernel_backward.h: lock, counter and padding, in floats."""

_PARALLEL = 200
"""Thread blocks beyond which keys are split no further (attention_backward.cu)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Attention's extents: batch times heads, rows of queries and of keys, size of a head.

    itemsize: bytes of an element.
    """

    batches: int
    queries: int
    keys: int
    head: int
    itemsize: int

    @classmethod
    def of(cls, query: torch.Tensor, key: torch.Tensor) -> Shape:
        """Of tensors of (batch, heads, rows, head)."""
        batch, heads, rows, head = query.shape
        return cls(batch * heads, rows, key.shape[2], head, query.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A backward kernel of memory-efficient attention: rows of queries per block, columns of the
    product for the queries' gradient, and whether the others' gradients are summed aside."""

    rows: int
    columns: int
    sums_aside: bool = False


_SMALL, _WIDE, _SQUARE = _Kernel(_BLOCK, _BLOCK), _Kernel(128, _BLOCK), _Kernel(128, 128)


def _kernel(shape: Shape, capability: tuple[int, int]) -> _Kernel:
    """The first kernel of kernels/cutlassB.h that has room for the head in the shared memory of the
    card: 160 KiB and more on 8.0, 9.0 and 10.0, at most 100 KiB elsewhere."""
    roomy = capability in ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
    if shape.head <= 64:
        return _SMALL
    if shape.itemsize == 4:
        return _WIDE if roomy else _SMALL
    if shape.head > 128:
        return _Kernel(128, _BLOCK, sums_aside=True)
    if roomy:
        return _SQUARE
    if shape.head > 96 and capability >= (8, 0):
        return _Kernel(_BLOCK, _BLOCK, sums_aside=True)
    return _WIDE


def efficient_workspace(shape: Shape, capability: tuple[int, int]) -> int:
    """Of memory-efficient attention's backward: Params::workspace_size in kernel_backward.h."""
    kernel = _kernel(shape, capability)
    blocks = -(-shape.queries // kernel.rows) * -(-shape.head // kernel.columns)
    floats = blocks * (kernel.rows * kernel.columns + _COUNTERS)
    if kernel.sums_aside:
        splits = min(-(-shape.keys // _BLOCK), _PARALLEL // shape.batches)
        if shape.batches >= 256 and shape.keys <= 2 * _BLOCK:
            splits = 1
        floats += 2 * max(splits, 1) * _BLOCK * rounded(shape.head, kernel.rows)
    return 4 * shape.batches * rounded(floats, 4)


def efficient_accumulator(shape: Shape) -> int:
    """Of memory-efficient attention's forward: the output in float32 where a half-precision head is
    too large for registers (kNeedsOutputAccumulatorBuffer in kernel_forward.h)."""
    if shape.itemsize == 4 or shape.head <= 128:
        return 0
    return 4 * shape.batches * shape.queries * shape.head


def flash_splits(shape: Shape, processors: int) -> tuple[int, int]:
    """Of flash attention's forward where few thread blocks share long keys: each split's rows' sums
    and output, in float32 (set_params_splitkv and num_splits_heuristic in flash_api.cpp)."""
    columns = 256 if shape.head <= 64 else 128 if shape.head <= 128 else _BLOCK
    blocks = shape.batches * -(-shape.queries // _BLOCK)
    splits = _splits(blocks, 2 * processors, -(-shape.keys // columns))
    if splits == 1:
        return 0, 0
    rows = 4 * splits * shape.batches * shape.queries
    return rows, rows * rounded(shape.head, 32 if shape.head <= 128 else 64)


def _splits(blocks: int, processors: int, parts: int) -> int:
    """The fewest splits of `parts` that keep the processors nearly as busy as any."""
    if blocks >= 0.8 * processors:
        return 1
    candidates = [
        n
        for n in range(1, min(128, processors, parts) + 1)
        if n == 1 or -(-parts // n) != -(-parts // (n - 1))
    ]
    waves = [blocks * n / processors for n in candidates]
    busy = [wave / math.ceil(wave) for wave in waves]
    return next(n for n, share in zip(candidates, busy, strict=True) if share >= 0.85 * max(busy))


def flash_buffers(shape: Shape) -> tuple[int, int]:
    """Of flash attention's backward: the rows' sums and the queries' gradient in float32, padded
    (mha_bwd in flash_attn/flash_api.cpp)."""
    rows = 4 * shape.batches * rounded(shape.queries, 128)
    return rows, rows * rounded(shape.head, 32 if shape.head <= 128 else 64)


def flash_backward(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Flash attention's backward, called as an operator: in compiled code."""
    memory.borrow(*flash_buffers(Shape.of(*args[1:3])))


def flash_backward_of_sequences(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The same of sequences one after the other in a tensor (places, heads, head), each of which is
    padded (mha_varlen_bwd); of one of (batch, rows, heads, head) where they all have its rows."""
    query, starts = args[1], args[6]
    if starts is None:
        memory.borrow(*flash_buffers(Shape.of(query.transpose(1, 2), args[2].transpose(1, 2))))
        return
    places, heads, head = query.shape
    rows = 4 * heads * (places + 128 * (starts.numel() - 1))
    memory.borrow(rows, rows * rounded(head, 32 if head <= 128 else 64))


def efficient_backward(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The same of memory-efficient attention."""
    efficient_buffers(memory.storages, Shape.of(*args[1:3]), args[5], memory.capability)


def efficient_backward_of_sequences(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The same of sequences one after the other in a tensor (batch, places, heads, head)."""
    query, out, starts = args[1], args[5], args[6]
    if starts is None:
        shape = Shape.of(query.transpose(1, 2), args[2].transpose(1, 2))
    else:
        batches = (starts.numel() - 1) * query.shape[2]
        shape = Shape(batches, int(args[8]), int(args[9]), query.shape[3], query.itemsize)
    places = 4 * query.shape[:3].numel()
    efficient_buffers(memory.storages, shape, out.transpose(1, 2), memory.capability, places)


def efficient_buffers(
    storages: Storages,
    shape: Shape,
    out: torch.Tensor,
    capability: tuple[int, int],
    of_rows: int | None = None,
) -> None:
    """Borrow the sums of gradient x output per row, which the kernel itself makes in half precision
    (kKernelComputesDelta), and the workspace."""
    allocate, release = storages.malloc, storages.release
    rows = 4 * shape.batches * shape.queries if of_rows is None else of_rows
    if shape.itemsize == 4:
        product = allocate(4 * out.numel())
        delta = allocate(rows)
        if out.shape[1] > 1:  # the heads come first: another copy
            delta, transposed = allocate(rows), delta
            release(transposed)
        release(product)
    else:
        delta = allocate(rows)
    workspace = allocate(efficient_workspace(shape, capability))
    release(delta)
    release(workspace)


def cudnn_workspace(shape: Shape) -> int:
    """Of cuDNN's backward, which does not publish it: the queries' gradient in float32 and the
    rows' sums, which every such kernel needs."""
    return 4 * shape.batches * shape.queries * (shape.head + 1)


def rounded(number: int, multiple: int) -> int:
    """`number` rounded up to a multiple of `multiple`."""
    return -(-number // multiple) * multiple
