"""Sparse tensors in a dry run: results of operators that take or make them."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem_magic.dryrun.shapes.stand_ins import Guesses
from gpumem_magic.dryrun.shapes.valueless import MOST_FLOATS, Valueless
from gpumem_magic.sources.objects.ownership import sparse_parts
from gpumem_magic.virtual.kernels.sparse import rows_of
from gpumem_magic.virtual.traits import tensors_among

_PRODUCTS = frozenset(f"aten::{name}" for name in "mm mv addmm _sparse_mm _sparse_addmm".split())
_KEEP_PLACES = frozenset(f"aten::{name}" for name in "_coalesce clone _to_copy".split())
_UNREAD = ("aten::_sparse_coo_tensor", "aten::is_coalesced", "aten::_nnz", "aten::_coalesced_")
"""Operators that read no values."""

_UNKNOWN = "{} cannot be predicted: values decide how many elements the sparse tensor has"


class SparseResults:
    """Results over memory nobody touches, with as many elements as their operands let them have."""

    def __init__(self, valueless: Valueless, guesses: Guesses) -> None:
        self._valueless = valueless
        self._guesses = guesses

    def of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func(*args, **kwargs)` returns. Raises NotImplementedError where that depends on
        values, and what the operator raises for shapes that do not fit."""
        name: str = func._schema.name
        tensors = tensors_among(args, kwargs)
        if name.startswith(_UNREAD) or all(map(self._is_known, tensors)):
            return func(*args, **kwargs)
        if all(tensor.layout is torch.strided for tensor in tensors):
            if name.startswith("aten::_to_sparse") and args[0] not in self._valueless:
                return func(*args, **kwargs)
            raise NotImplementedError(_UNKNOWN.format(name))
        first = next(tensor for tensor in tensors if tensor.layout is not torch.strided)
        if name == "aten::_to_sparse_csr" and first.layout is torch.sparse_coo:
            return rows_of(first, self._dense)
        if name in _PRODUCTS:
            self._guesses.unmeasured("torch.sparse")
            return self._product(*(tensor.shape for tensor in tensors), dtype=first.dtype)
        if name == "aten::_to_dense":
            return self._dense(first.shape, first.dtype)
        if name == "aten::sparse_mask":
            return self._like(args[1], args[0].dtype)
        if name == "aten::_sparse_sum" and first.layout is torch.sparse_coo:
            return self._summed(first, args[1])
        if name in ("aten::add", "aten::add_") and len(tensors) == 2:
            return self._sum(func, args, kwargs)
        if name in _KEEP_PLACES or "softmax" in name or torch.Tag.pointwise in func.tags:
            like = self._like(first, kwargs.get("dtype") or first.dtype)
            if name == "aten::_coalesce":
                self._guesses.needed("how many different places a sparse tensor names")
                like._coalesced_(True)
            return like
        raise NotImplementedError(_UNKNOWN.format(name))

    def marked(self, made: Any, source: Any) -> Any:
        """`made`, which has values only if its source, `source`, has: a transposed copy, say."""
        is_sparse = isinstance(made, torch.Tensor) and made.layout is not torch.strided
        if is_sparse and not self._is_known(source):
            for _, part in sparse_parts(torch, made):
                self._valueless.written(part)
        return made

    def _is_known(self, tensor: torch.Tensor) -> bool:
        parts = [part for _, part in sparse_parts(torch, tensor)] or [tensor]
        size = sum(part.nbytes for part in parts)
        return size <= MOST_FLOATS and not any(part in self._valueless for part in parts)

    def _product(self, *shapes: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        left, right = shapes[-2:]
        if left[-1] != right[0]:
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({left} and {right})")
        return self._dense((*left[:-1], *right[1:]), dtype)

    def _sum(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        one, other = args[:2]
        if one.layout is other.layout:  # those of both, one after the other
            return self.marked(func(*args, **kwargs), one)
        if func._schema.name == "aten::add_":
            self._valueless.written(one)
            return one
        return self._dense(one.shape, torch.result_type(one, other))

    def _summed(self, tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """Over these dimensions: at most as many places as there were."""
        summed, places = {dim % tensor.dim() for dim in dims}, tensor.sparse_dim()
        kept = [dim for dim in range(tensor.dim()) if dim not in summed]
        size = torch.Size(tensor.shape[dim] for dim in kept)
        sparse = sum(dim < places for dim in kept)
        if not sparse:
            return self._dense(size, tensor.dtype)
        self._guesses.needed("how many different places a sparse tensor names")
        n = min(tensor._nnz(), math.prod(size[:sparse]))
        indices = self._dense((sparse, n), torch.int64)
        values = self._dense((n, *size[sparse:]), tensor.dtype)
        made: torch.Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(indices, values, size)
        made._coalesced_(True)
        return made

    def _dense(self, size: Any, dtype: torch.dtype) -> torch.Tensor:
        stride = torch.empty(size, device="meta").stride()
        return self._valueless.make(dtype, torch.Size(size), stride)

    def _like(self, model: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """With the model's number of elements, in places of its own."""
        if model.layout is not torch.sparse_coo:
            raise NotImplementedError(f"tensors of {model.layout} cannot be predicted: use COO")
        indices, values = (part for _, part in sparse_parts(torch, model))
        made: torch.Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(
            self._dense(indices.shape, indices.dtype), self._dense(values.shape, dtype), model.shape
        )
        made._coalesced_(model.is_coalesced())
        return made
