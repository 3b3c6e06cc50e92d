"""The gradient of `prod`, as it is where nothing watches: torch looks for zeros, and divides. Where
something does, C++ goes by cumulative products (prod_backward of csrc/autograd/FunctionsManual.cpp)
and asks no operator that could be replaced, so that the function is taken over in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.storages import Storages

_functorch_is_on: Callable[[], bool] = torch._C._are_functorch_transforms_active


PRODUCTS = frozenset({torch.prod, torch.Tensor.prod})


def product(prod: Any, storages: Storages, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What one of PRODUCTS gives; with a gradient of its own on the device."""
    tensor, *rest = args or (None,)
    if not isinstance(tensor, torch.Tensor) or tensor not in storages or storages.traced:
        return prod(*args, **kwargs)
    named = "dim" in kwargs or not rest or isinstance(rest[0], int)
    recorded = torch.is_grad_enabled() and tensor.requires_grad and not _functorch_is_on()
    if not (named and recorded) or torch.compiler.is_dynamo_compiling():
        return prod(*args, **kwargs)
    return Prod.apply(prod, tensor, rest, kwargs)  # type: ignore[no-untyped-call]


class Prod(torch.autograd.Function):
    """Saves the input and the result."""

    @staticmethod
    def forward(ctx: Any, prod: Any, tensor: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
        """The product of all elements, or of those along one dimension."""
        result: torch.Tensor = prod(tensor, *args, **kwargs)
        dim = kwargs.get("dim", args[0] if args else None)
        is_kept = result.dim() == tensor.dim()
        ctx.along = None if dim is None else (dim % max(tensor.dim(), 1), is_kept)
        ctx.save_for_backward(tensor, result)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """The gradient of the input."""
        (tensor, result), gradient = ctx.saved_tensors, gradients[0]
        if gradient is None:
            return None, None, None, None
        tensor = tensor.to(gradient.dtype)
        if not tensor.dim():
            return None, gradient.clone(), None, None
        if ctx.along is None:
            found = (tensor == 0).nonzero()
            if len(found):
                flat = _by_products(gradient, tensor.contiguous().view(-1), 0).view_as(tensor)
                return None, flat, None, None
            return None, gradient * (result / tensor).conj(), None, None
        dim, is_kept = ctx.along
        if not is_kept:
            gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
        are_zero = tensor == 0
        counts = are_zero.sum(dim, True)
        if torch.ops.aten._local_scalar_dense(counts.sum()):
            made = _by_products(gradient, tensor, dim)
        else:
            made = gradient * (result / tensor).conj()
        del counts, are_zero  # in this order
        return None, made, None, None


def _by_products(gradient: torch.Tensor, tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Where there are zeros: of each element the product of those before it and of those after it
    (prod_safe_zeros_backward)."""
    count = tensor.shape[dim]
    if count == 1:
        return gradient
    ones = torch.ones_like(tensor.narrow(dim, 0, 1))
    before = torch.cat((ones, tensor.narrow(dim, 0, count - 1)), dim).cumprod(dim)
    after = torch.cat((ones, tensor.narrow(dim, 1, count - 1).flip(dim)), dim).cumprod(dim)
    return gradient * (before * after.flip(dim)).conj()
