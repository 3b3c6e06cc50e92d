"""What operators of sparse tensors take on CUDA besides their results (native/sparse/cuda)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.workspaces.selection import merge_sort_storage

_INDEX, _SHORT_INDEX = 8, 4  # bytes


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


def found_in(storages: Storages) -> dict[Any, Callable[..., Any]]:
    """The operators that make dense tensors of the card sparse, as CUDA takes them apart: how many
    elements there are is asked of `nonzero` and `masked_select`."""

    def of_dense(take_apart: Callable[..., Any]) -> Callable[..., Any]:
        def convert(tensor: torch.Tensor, *how: Any, **named: Any) -> Any:
            plain = all(value in (None, torch.sparse_coo, 0) for value in named.values())
            if tensor.layout is torch.strided and tensor in storages and plain:
                return take_apart(tensor, *how)
            return NotImplemented

        return convert

    aten = torch.ops.aten
    return {
        aten._to_sparse.default: of_dense(_places_of),
        aten._to_sparse.sparse_dim: of_dense(_places_of),
        aten._to_sparse_csr.default: of_dense(_rows_of_dense),
    }


def _places_of(tensor: torch.Tensor, sparse_dim: int | None = None) -> Any:
    """dense_to_sparse in native/TensorConversions.cpp."""
    dims = tensor.dim() if sparse_dim is None else sparse_dim
    if not dims:
        return NotImplemented
    found = tensor.nonzero().T
    if dims == tensor.dim():
        indices = found.clone()
    else:
        indices = torch.ops.aten.unique_dim(found.narrow(0, 0, dims), 1)[0].contiguous()
    values = tensor[indices.chunk(dims)].squeeze(0).clone()
    made = torch.ops.aten._sparse_coo_tensor_unsafe(indices, values, tensor.shape)
    return made._coalesced_(True)


def _rows_of_dense(tensor: torch.Tensor) -> Any:
    """dense_to_sparse_compressed in native/TensorConversions.cpp, for a matrix."""
    if tensor.dim() != 2:
        return NotImplemented
    mask, (rows, columns), device = tensor != 0, tensor.shape, tensor.device
    of_columns = torch.arange(columns, device=device).view(1, columns)
    column = of_columns.expand_as(mask).masked_select(mask)
    of_rows = torch.arange(rows, device=device).view(rows, 1)
    row = of_rows.expand_as(mask).masked_select(mask)
    ends = torch._convert_indices_from_coo_to_csr(row, rows)
    flat = mask.flatten()
    places = torch.arange(flat.numel(), device=device).masked_select(flat)
    values = tensor.flatten().index_select(0, places)
    return torch.ops.aten._sparse_compressed_tensor_unsafe(
        ends, column, values, tensor.shape, layout=torch.sparse_csr
    )


def _coalesced(args: tuple[Any, ...]) -> list[int]:
    """Flat indices, their order and the places where new ones begin, all at once; and Thrust's
    sort of them (_coalesce_sparse_cuda in SparseCUDATensor.cu)."""
    nnz = args[0]._nnz()
    if nnz < 2:
        return []
    return [nnz * _INDEX] * 3 + [merge_sort_storage(nnz, (_INDEX, _INDEX))]


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
