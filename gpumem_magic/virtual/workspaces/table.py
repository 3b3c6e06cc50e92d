"""Which operators take memory besides their results, and what takes it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.workspaces import (
    attention_memory,
    convolutions,
    folds,
    fused_cells,
    lookups,
    losses,
    norms,
    scatters,
    selection,
)
from gpumem_magic.virtual.workspaces import dense_copies as copies
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory

Scratch = Callable[[Args, Kwargs], None]
"""Called with an operator's arguments once its results are placed."""

Placing = Callable[[Args, Any], None]
"""Called with an operator's arguments and results, which it places, with buffers in between."""

_CUBLAS = frozenset(
    "addbmm addmm addmv addr baddbmm bmm dot mm mv vdot _addmm_activation _int_mm".split()
)
_SOLVING = (
    "_linalg_solve_ex linalg_lu_solve linalg_lstsq linalg_pinv linalg_solve_triangular "
    "triangular_solve"
).split()
_REDUCTIONS = frozenset(
    "sum mean prod amax amin max min nansum norm linalg_vector_norm all any "
    "std var std_mean var_mean argmax argmin".split()
)
_SUMS = frozenset({"sum", "prod", "nansum"})
_ONE_DIM = frozenset({"all", "any", "max", "min", "prod", "argmax", "argmin"})
"""Their second argument is one dimension, if anything."""


def placing_of(memory: ScratchMemory, operator: str) -> Placing | None:
    """What places this operator's results where their order and that of its buffers matter; None:
    they are placed in turn, and buffers come after them."""
    found = _PLACINGS.get(operator)
    return functools.partial(found, memory) if found else None


def scratch_of(memory: ScratchMemory, operator: str) -> Scratch | None:
    """What takes the scratch memory of this operator (without "aten::"); None: none."""
    if operator in _CUBLAS:
        return functools.partial(_product, memory, operator)
    if operator in _REDUCTIONS:
        return functools.partial(_reduction, memory, operator)
    if operator in losses.LOSSES:
        return functools.partial(losses.before_the_mean, memory, losses.LOSSES[operator])
    if operator in copies.AFTER:
        return lambda args, kwargs: memory.borrow(*copies.copied_after(operator, args))
    found = _SCRATCHES.get(operator)
    return functools.partial(found, memory) if found else None


def _zeros_without_memory(memory: ScratchMemory, args: Args, zeros: torch.Tensor) -> None:
    """Zeros that stand for a tangent or a gradient that nobody gave (TensorFactories.cpp)."""
    memory.place_as(zeros, 0)


def _product(memory: ScratchMemory, operator: str, args: Args, kwargs: Kwargs) -> None:
    with memory.blocks() as operands:
        operands.take(*copies.product_copies(operator, args))
        memory.multiply(by_lt=copies.fuses_bias(operator, args, kwargs))


def _reduction(memory: ScratchMemory, operator: str, args: Args, kwargs: Kwargs) -> None:
    tensor = args[0]
    with memory.blocks() as converted:
        if operator in _SUMS and (wider := _sum_type(tensor, kwargs.get("dtype"))):
            converted.take(tensor.numel() * wider.itemsize)
            tensor = torch.empty_strided(tensor.shape, tensor.stride(), dtype=wider, device="meta")
        memory.reduce(tensor, _dims(operator, args, kwargs), operator)


def _softmax_backward(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """gradient x output, and dense copies of both (softmax_backward_cuda_out in
    native/cuda/SoftMax.cu)."""
    gradient, output = (
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta") for a in args[:2]
    )
    product = gradient * output
    memory.borrow(product.nbytes, *copies.copied((0, 1), (product, output)))


def _from_half_of_spectrum(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """A copy that cuFFT may write over, transformed in all dimensions but the last (_fft_c2r_cufft
    of native/cuda/SpectralOps.cpp)."""
    memory.borrow(args[0].numel() * args[0].itemsize)


def _solve(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """cuBLAS solves triangular systems (native/cuda/linalg)."""
    memory.multiply()


def _inverse(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Of two matrices, one is factorized, one is solved for (native/cuda/linalg)."""
    with memory.blocks() as matrices:
        matrices.take(args[0].nbytes, args[0].nbytes)
        memory.multiply()


def _exponential(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Five powers of the matrices, and two sums of them (native/LinearAlgebra.cpp)."""
    with memory.blocks() as powers:
        powers.take(args[0].nbytes, 5 * args[0].nbytes, args[0].nbytes)
        memory.multiply()


def _of_batch(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """cuBLAS factorizes many matrices at once (native/cuda/linalg)."""
    if args[0].dim() > 2:
        memory.multiply()


def _scaled_product(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """By cuBLASLt alone (_scaled_mm_out_cuda of native/cuda/ScaledBlas.cpp)."""
    memory.multiply(by_lt=True)


def _count(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Whether each is not zero, and the sum of that (count_nonzero_cuda in
    native/TensorAdvancedIndexing.cpp)."""
    with memory.blocks() as flags:
        flags.take(0 if args[0].dtype is torch.bool else args[0].numel())
        memory.borrow(args[0].numel() * INDEX)


def _infinite(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """Of absolute values (isinf of native/TensorCompare.cpp)."""
    with memory.blocks() as absolute:
        absolute.take(args[0].nbytes if args[0].is_floating_point() else 0)
        memory.place(out)


def _from_padded(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """Values that nothing is written to, as large as the result (dense_to_jagged of
    native/nested/cuda/NestedTensorTransformerFunctions.cu)."""
    with memory.blocks() as values:
        values.take(out.nbytes)
        memory.place(out)


def _renorm(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """One norm for each slice, in float32 at least, and a factor where that is another type
    (renorm_out of native/Normalization.cpp)."""
    tensor, _, dim = args[:3]
    slices, single = tensor.shape[dim], torch.float32.itemsize
    with memory.blocks() as norms:
        norms.take(slices * max(single, tensor.itemsize))
        others = [d for d in range(tensor.dim()) if d != dim % tensor.dim()]
        memory.reduce(tensor, others, "linalg_vector_norm")
        norms.take(slices * tensor.itemsize if tensor.itemsize < single else 0)


def _normal(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """Deviations are looked at first; one for all is spread over a tensor, a mean for all is put
    into one (normal_impl of native/DistributionTemplates.h)."""
    mean, deviation = (*args, 1.0)[:2]
    if isinstance(deviation, torch.Tensor):
        with memory.blocks() as least:
            least.take(deviation.itemsize)
            memory.reduce(deviation, None, "min")
            least.take(1)
    memory.place(out)
    if not isinstance(deviation, torch.Tensor):
        memory.borrow(out.nbytes)
    elif not isinstance(mean, torch.Tensor):
        memory.borrow(out.itemsize)


def _equal(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Whether each element is, and whether all are (cuda_equal of native/cuda/Equal.cpp)."""
    one, other = args[:2]
    if one.shape == other.shape and one.numel():
        with memory.blocks() as flags:
            flags.take(one.numel(), 1)
            memory.reduce(torch.empty(one.shape, dtype=torch.bool, device="meta"), None, "all")


def _scan(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """scan_dim of native/cuda/ScanUtils.cuh: CUB where there is one dimension to speak of."""
    tensor, dim = args[:2]
    dtype = kwargs.get("dtype") or tensor.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.int64
    converted = tensor.numel() * dtype.itemsize
    taken = [converted] if dtype is not tensor.dtype else copies.copied((0,), args)
    if tensor.dim() and 0 < tensor.numel() == tensor.shape[dim]:
        taken.append(selection.scan_storage(tensor.numel(), dtype.itemsize))
    memory.borrow(*taken)


def _safe_softmax(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Whether each element is minus infinity, whether all of a row are, and a zero instead."""
    elements = args[0].numel()
    memory.borrow(elements, elements // max(1, args[0].shape[args[1]]), args[0].itemsize)


def _sum_type(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """What the terms are converted to before they are summed; None: they are summed as they are, as
    halves are in float32 (make_reduction in native/ReduceOpsUtils.h)."""
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    wider = dtype or (torch.int64 if whole else tensor.dtype)
    if wider is tensor.dtype or (wider is torch.float32 and tensor.dtype.itemsize == 2):
        return None
    return wider


def _dims(operator: str, args: Args, kwargs: Kwargs) -> list[int] | None:
    """The dimensions that a reduction was asked for; None: all."""
    dims: Any = kwargs.get("dim")
    if dims is None and operator in _ONE_DIM:
        dims = args[1] if len(args) > 1 else None
    elif dims is None:
        dims = next((a for a in args[1:] if isinstance(a, (list, tuple))), None)
    return [dims] if isinstance(dims, int) else dims


_PLACINGS: dict[str, Callable[[ScratchMemory, Args, Any], None]] = {
    "_efficientzerotensor": _zeros_without_memory,
    "convolution": convolutions.forward,
    "convolution_backward": convolutions.backward,
    "embedding_dense_backward": lookups.embedding_backward,
    "index": lookups.index,
    "_embedding_bag": lookups.bag,
    "_embedding_bag_dense_backward": lookups.bag_backward,
    "native_layer_norm": norms.layer,
    "native_layer_norm_backward": norms.layer_backward,
    "native_batch_norm": norms.batch,
    "native_batch_norm_backward": norms.batch_backward,
    "log_sigmoid_forward": losses.log_sigmoid,
    "soft_margin_loss_backward": losses.soft_margin_backward,
    "_ctc_loss": losses.ctc,
    "_ctc_loss_backward": losses.ctc_backward,
    "_padded_dense_to_jagged_forward": _from_padded,
    "isinf": _infinite,
    "normal": _normal,
    "_unique": selection.unique,
    "_unique2": selection.unique,
    "unique_consecutive": selection.unique_consecutive,
    "unique_dim": selection.unique_slices,
    "roll": copies.roll,
    "where": copies.where,
    "logsumexp": scatters.logsumexp,
    "im2col": folds.fold,
    "col2im": folds.fold,
    "adaptive_max_pool2d": folds.pool,
    "adaptive_max_pool2d_backward": folds.pool_backward,
    "_thnn_fused_lstm_cell": fused_cells.place_results,
    "_thnn_fused_gru_cell": fused_cells.place_results,
    "_thnn_fused_lstm_cell_backward_impl": fused_cells.place_gradients,
    "_thnn_fused_gru_cell_backward": fused_cells.place_gradients,
}

_SCRATCHES: dict[str, Callable[[ScratchMemory, Args, Kwargs], None]] = {
    **dict.fromkeys(
        ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"), lookups.index_put
    ),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "avg_pool2d_backward"), folds.lay_out_gradient
    ),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d"), folds.lay_out),
    "unfold_backward": folds.unfold_backward,
    "embedding_renorm_": lookups.embedding_renorm,
    "renorm": _renorm,
    **dict.fromkeys(("index_add", "index_add_"), scatters.index_add),
    **dict.fromkeys(("index_copy", "index_copy_"), scatters.index_copy),
    **dict.fromkeys(("scatter", "scatter_"), scatters.scatter),
    **dict.fromkeys(("scatter_add", "scatter_add_"), scatters.scatter_add),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _scan),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), scatters.scatter_reduce),
    **dict.fromkeys(("index_reduce", "index_reduce_"), scatters.index_reduce),
    **dict.fromkeys(("masked_scatter", "masked_scatter_"), scatters.masked_scatter),
    "_softmax_backward_data": _softmax_backward,
    "_safe_softmax": _safe_softmax,
    "_scaled_dot_product_flash_attention_backward": attention_memory.flash_backward,
    "_scaled_dot_product_efficient_attention_backward": attention_memory.efficient_backward,
    "_flash_attention_backward": attention_memory.flash_backward_of_sequences,
    "_efficient_attention_backward": attention_memory.efficient_backward_of_sequences,
    "_pack_padded_sequence": copies.pack,
    "count_nonzero": _count,
    "equal": _equal,
    "_to_copy": copies.to_copy,
    "copy_": copies.copy,
    "native_group_norm": norms.group,
    "native_group_norm_backward": norms.group_backward,
    "topk": selection.topk,
    "sort": selection.sort,
    "median": selection.median,
    "nanmedian": selection.median,
    "isin": selection.membership,
    "randperm": selection.permutation,
    "multinomial": selection.multinomial,
    "mode": selection.mode,
    "_fft_c2r": _from_half_of_spectrum,
    **dict.fromkeys(_SOLVING, _solve),
    "linalg_inv_ex": _inverse,
    "linalg_matrix_exp": _exponential,
    **dict.fromkeys("linalg_qr linalg_lu_factor_ex _linalg_det _linalg_slogdet".split(), _of_batch),
    "_scaled_mm": _scaled_product,
    "_cdist_backward": norms.distances,
    "_pdist_backward": norms.distances_within,
}

UNMEASURED = {
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), "torch.fft"),
    **dict.fromkeys(
        (
            "_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd "
            "cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_eigvals "
            "linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_lstsq linalg_lu "
            "linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr "
            "linalg_solve_triangular ormqr triangular_solve"
        ).split(),
        "torch.linalg",
    ),
}
"""Operators whose libraries (cuFFT, cuSOLVER, MAGMA) do not publish what they take."""
