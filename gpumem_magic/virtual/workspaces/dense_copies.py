"""Dense copies on the device: between host and device, of operands, of weights, of matrices."""

from __future__ import annotations

import torch

from gpumem_magic.virtual.devices import HOST
from gpumem_magic.virtual.workspaces.layouts import is_dense, size_of
from gpumem_magic.virtual.workspaces.scratch import Args, Kwargs, ScratchMemory


def to_copy(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """`_to_copy` in either direction."""
    source, device = args[0], kwargs.get("device")
    leaves = source in memory.storages
    if leaves and device in (None, HOST):  # it stays on the device
        return
    target = torch.empty_like(
        source,
        dtype=kwargs.get("dtype") or source.dtype,
        device="meta",
        memory_format=kwargs.get("memory_format") or torch.preserve_format,
    )
    memory.borrow(_between(target, source, leaves, bool(kwargs.get("non_blocking"))))


def copy(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """`copy_` in either direction."""
    target, source = args[:2]
    if (target in memory.storages) is (source in memory.storages):
        return
    waits_not = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    memory.borrow(_between(target, source, source in memory.storages, bool(waits_not)))


def where(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """Place what `where` returns, beside numbers of the host (where_self_out of
    native/TensorCompare.cpp)."""
    with memory.blocks() as numbers:
        for operand in args[1:]:
            if operand not in memory.storages:
                numbers.take(out.dtype.itemsize)
        memory.place(out)


def roll(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """Place what `roll` returns, beside a dense copy and what was rolled in one dimension after the
    other (roll_cuda of native/cuda/TensorTransformations.cu, roll_common of its header)."""
    with memory.blocks() as rolled:
        rolled.take(*copied((0,), args))
        rolled.take(*[out.nbytes] * (len(args[1]) - 1))
        memory.place(out)


def _between(target: torch.Tensor, source: torch.Tensor, leaves: bool, waits_not: bool) -> int:
    """Bytes of the dense copy on the device. Who waits has the host convert values, the device does
    so for who does not."""
    same = target.dtype is source.dtype
    if same and _alike(target, source):
        return 0
    if not leaves:
        is_ready = target.is_contiguous() and (same or not waits_not)
        return 0 if is_ready else target.numel() * (source if waits_not else target).dtype.itemsize
    if waits_not and not same:
        return target.numel() * target.dtype.itemsize
    is_ready = source.shape == target.shape and source.is_contiguous()
    return 0 if is_ready else target.numel() * source.dtype.itemsize


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether one run of bytes becomes another."""
    shapes = size_of(first), size_of(second)
    if shapes[0] != shapes[1]:
        return first.numel() == 1 and second.numel() == 1
    return is_dense(first) and all(
        n == 1 or a == b for n, a, b in zip(shapes[0], first.stride(), second.stride(), strict=True)
    )


_INTERPOLATIONS = (
    *(f"upsample_nearest{d}d" for d in (1, 2, 3)),
    *(f"_upsample_nearest_exact{d}d" for d in (1, 2, 3)),
    *(f"upsample_nearest{d}d_backward" for d in (1, 2, 3)),
    *(f"_upsample_nearest_exact{d}d_backward" for d in (1, 2, 3)),
    "upsample_bilinear2d_backward",
)
"""They take channels last as it is, but for images of few channels (native/cuda/UpSample*.cu)."""

_CONTIGUOUS_ONLY = (
    "upsample_bicubic2d_backward",
    *(f"_upsample_{mode}2d_aa" for mode in ("bilinear", "bicubic")),
    *(f"_upsample_{mode}2d_aa_backward" for mode in ("bilinear", "bicubic")),
)

AFTER = {
    **dict.fromkeys((*_INTERPOLATIONS, *_CONTIGUOUS_ONLY), (0,)),
    "_softmax": (0,),
    "_log_softmax": (0,),
    "_log_softmax_backward_data": (0, 1),
    "adaptive_max_pool3d": (0,),
    "nll_loss_forward": (0, 1),
    "nll_loss_backward": (1, 2),
    "reflection_pad1d": (0,),
    "reflection_pad2d": (0,),
    "reflection_pad2d_backward": (0,),
    "replication_pad1d": (0,),
    "replication_pad2d": (0,),
    "fractional_max_pool2d_backward": (0,),
    "max_pool3d_with_indices_backward": (0,),
    "avg_pool3d_backward": (0,),
    "_adaptive_avg_pool2d_backward": (0,),
    "_adaptive_avg_pool3d_backward": (0,),
}
"""By operator, the places of the operands that are copied after the results are made
(native/cuda/SoftMax.cu, and the kernels of padding, pooling and UpSample)."""


def copied_after(operator: str, args: Args) -> list[int]:
    """Bytes of the copies of `AFTER`."""
    if operator in _INTERPOLATIONS and args[0].dim() == 4 and args[0].shape[1] > 3:
        formats = (torch.contiguous_format, torch.channels_last)
        as_it_is = any(args[0].is_contiguous(memory_format=each) for each in formats)
        return [] if as_it_is else [args[0].nbytes]
    return copied(AFTER[operator], args)


def copied(places: tuple[int, ...], args: Args) -> list[int]:
    """Bytes of the copies of what is not contiguous."""
    return [
        args[place].nbytes
        for place in places
        if place < len(args) and not args[place].is_contiguous()
    ]


def pack(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """`_pack_padded_sequence`."""
    memory.borrow(*_packing_copies(*args, **kwargs))


def _packing_copies(
    padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False
) -> list[int]:
    """Of the pieces that `_pack_padded_sequence` copies before it joins them: one for each length,
    with all steps beyond the next shorter one (native/PackedSequence.cpp)."""
    steps_first = padded.transpose(0, 1) if batch_first else padded
    sizes, done = [], 0
    shortest_first = reversed(lengths.tolist())
    for sequences, length in zip(range(len(lengths), 0, -1), shortest_first, strict=True):
        if length > done:
            piece = steps_first[done:length, :sequences]
            if not piece.is_contiguous():
                sizes.append(piece.nbytes)
            done = length
    return sizes


_FUSING = ("addmm", "_addmm_activation")

_TWO = ("mm", *_FUSING)

_BATCHES = ("bmm", "baddbmm")

_VECTOR = ("mv", "addmv")


def product_copies(operator: str, args: Args) -> list[int]:
    """Bytes of the copies of a product's operands, in order."""
    for operators, copies in ((_TWO, _matrices), (_BATCHES, _batches), (_VECTOR, _vector)):
        if operator in operators:
            added = operator not in ("mm", "bmm", "mv")  # to what comes first
            return copies(args[added], args[1 + added])
    return []


def fuses_bias(operator: str, args: Args, kwargs: Kwargs) -> bool:
    """Whether cuBLASLt does it, bias included (isInputCompliesAddmmCudaLt of
    native/cuda/Blas.cpp)."""
    if operator not in _FUSING:
        return False
    bias, _, weight = args[:3]
    fits = bias.dim() == 1 and min(weight.shape) > 1 and kwargs.get("beta", 1) == 1
    return bool(fits and weight.is_floating_point())


def _matrices(first: torch.Tensor, second: torch.Tensor) -> list[int]:
    """cublasCommonArgs of native/cuda/Blas.cpp: cuBLAS wants columns, so the result is transposed
    and the second matrix is looked at first."""
    return [m.nbytes for m in (second, first) if not (is_dense(m) or _has_rows(m, *m.shape))]


def _batches(first: torch.Tensor, second: torch.Tensor) -> list[int]:
    """bmm_out_cuda_impl of native/cuda/Blas.cpp, whose result is dense."""
    rows, columns, depth = first.shape[1], second.shape[2], first.shape[2]
    if columns == 1:
        pairs = ((first, rows, depth), (second, depth, columns))
    else:
        pairs = ((second, depth, columns), (first, rows, depth))
    return [
        batch.nbytes
        for batch, height, width in pairs
        if not _has_rows(batch, height, width)
        and not (batch.is_contiguous() and 0 not in batch.stride()[1:])
    ]


def _vector(matrix: torch.Tensor, vector: torch.Tensor) -> list[int]:
    """addmv_out_cuda of native/cuda/Blas.cpp."""
    copies = [vector.nbytes] if vector.stride()[0] == 0 else []
    return copies if _has_rows(matrix, *matrix.shape) else [*copies, matrix.nbytes]


def _has_rows(matrix: torch.Tensor, rows: int, columns: int) -> bool:
    """Whether its rows or its columns are dense, and none overlap."""
    down, along = matrix.stride()[-2:]
    return bool((along == 1 and down >= max(1, columns)) or (down == 1 and along >= max(1, rows)))
