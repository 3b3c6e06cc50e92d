"""What operators of sparse tensors take on CUDA besides their results (native/sparse/cuda)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.storages import Storages

_INDEX, _SHORT_INDEX = 8, 4  # bytes
_SORT_COUNTERS = 511  # bytes, of cub's radix sort of few elements; measured
_ALIGNMENT = 256  # bytes, of the parts of cub's temporary storage


def take_scratch(storages: Storages, operator: str, args: tuple[Any, ...]) -> None:
    """Take and give back what the operator needs besides its results, where one of `args` is
    sparse. Raises torch.OutOfMemoryError."""
    if (scratch := _SCRATCHES.get(operator)) is not None:
        storages.borrow(*scratch(args))


def rows_of(model: torch.Tensor, make: Callable[[Any, torch.dtype], torch.Tensor]) -> torch.Tensor:
    """A COO matrix as CSR, whose new parts `make(size, dtype)` makes; where each place is named
    once, both share the rest (coo_to_sparse_csr in native/TensorConversions.cpp)."""
    columns, values = model._indices()[1], model._values()
    if not model.is_coalesced():
        columns, values = (make(part.shape, part.dtype) for part in (columns, values))
    ends = make((model.shape[0] + 1,), torch.int64)
    made: torch.Tensor = torch.ops.aten._sparse_compressed_tensor_unsafe(
        ends, columns, values, model.shape, layout=torch.sparse_csr
    )
    return made


def _coalesced(args: tuple[Any, ...]) -> list[int]:
    """Flat indices, their order and the places where new ones begin, all at once; and cub's sort of
    them (_coalesce_sparse_cuda in SparseCUDATensor.cu)."""
    nnz = args[0]._nnz()
    if nnz < 2:
        return []
    keys = -(-nnz * _INDEX // _ALIGNMENT) * _ALIGNMENT
    return [nnz * _INDEX] * 3 + [2 * keys + _SORT_COUNTERS]


def _product(args: tuple[Any, ...]) -> list[int]:
    """Zeros that are added to, and the rows and columns of a coalesced matrix as 32-bit integers
    (s_addmm_out_sparse_dense_cuda in SparseCUDABlas.cpp). What cuSPARSE takes is not published."""
    sparse, dense = args[-2:]
    if sparse.layout is not torch.sparse_coo or dense.layout is not torch.strided:
        return []
    rows, columns = sparse.shape[0], dense.shape[-1] if dense.dim() > 1 else 1
    nnz = sparse._nnz()
    indices = [(rows + 1) * _SHORT_INDEX, nnz * _SHORT_INDEX]
    zeros = [rows * columns * dense.element_size()] if len(args) == 2 else []
    return zeros + indices + ([] if sparse.is_coalesced() else _coalesced((sparse,)))


_SCRATCHES: dict[str, Callable[[tuple[Any, ...]], list[int]]] = {
    "_coalesce": _coalesced,
    **dict.fromkeys(("mm", "addmm", "_sparse_addmm", "_sparse_mm"), _product),
}
