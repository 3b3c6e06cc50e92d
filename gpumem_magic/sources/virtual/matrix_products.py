"""Dense copies of matrices that cuBLAS cannot read as they lie: those with steps in both
directions, as a sum's gradient has them, which is one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.sources.virtual.layouts import is_dense

_FUSING = ("addmm", "_addmm_activation")
_TWO = ("mm", *_FUSING)
_BATCHES = ("bmm", "baddbmm")
_VECTOR = ("mv", "addmv")


def product_copies(operator: str) -> Callable[[tuple[Any, ...]], list[int]]:
    """What tells the bytes of the copies, in order, from an operator's arguments."""
    if operator in _TWO:
        return lambda args: _matrices(*_operands(operator, args))
    if operator in _BATCHES:
        return lambda args: _batches(*_operands(operator, args))
    if operator in _VECTOR:
        return lambda args: _vector(*_operands(operator, args))
    return lambda args: []


def fuses_bias(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether cuBLASLt does it, bias included (isInputCompliesAddmmCudaLt of
    native/cuda/Blas.cpp)."""
    if operator not in _FUSING:
        return False
    bias, _, weight = args[:3]
    fits = bias.dim() == 1 and min(weight.shape) > 1 and kwargs.get("beta", 1) == 1
    return bool(fits and weight.is_floating_point())


def _operands(operator: str, args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    added = operator not in ("mm", "bmm", "mv")  # to what comes first
    return args[added], args[1 + added]


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
