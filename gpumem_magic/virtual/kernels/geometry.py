"""Shapes, strides and types of an operator's results, as its meta kernel tells them: remembered by
operator and geometry of the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from gpumem_magic.virtual.workspaces.layouts import Layout, kernel_format, size_of

_ATEN = torch.ops.aten
_META = torch.device("meta")
_GROUPED = getattr(_ATEN, "_grouped_mm", None) and _ATEN._grouped_mm.default


class Geometry:
    """Knows what operators return: Layout for each tensor, everything else as it is."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def results(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The shapes of what `func(*args, **kwargs)` returns, in the same tuples and lists.

        Raises NotImplementedError where the operator has no meta kernel, or where the shapes depend
        on values; RuntimeError for arguments that the operator refuses.
        """
        key = func, _key(args), _key(tuple(kwargs.items())) if kwargs else None
        try:
            return self._known[key]
        except KeyError:
            found = self._known[key] = _shapes(ask_meta_kernel(func, args, kwargs))
        except TypeError:  # an argument that cannot be a key
            found = _shapes(ask_meta_kernel(func, args, kwargs))
        return found


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return size_of(value), value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return type(value), value


def ask_meta_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `func(*args, **kwargs)` returns, as meta tensors. Raises as `Geometry.results`, and
    whatever else the kernel does."""
    if torch.Tag.data_dependent_output in func.tags:
        raise NotImplementedError(func.name())
    if func is _GROUPED and args[0].dtype in (torch.float32, torch.float16):
        # CUDA has a way for all types, its meta kernel knows but one (cuda/GroupedBlas.cpp).
        factors = [_to_meta(factor).bfloat16() for factor in args[:2]]
        return ask_meta_kernel(func, (*factors, *args[2:]), kwargs).to(args[0].dtype)
    if func.name() in _INTO_TYPE:
        *operands, dtype = args
        wide = (_to_meta(operand).to(dtype) for operand in operands)
        return func.overloadpacket.default(*wide)
    if (place := _LIKE_ARGUMENT.get(func.name())) is not None:
        return torch.empty_like(_to_meta(args[place]))
    on_meta = {name: _to_meta(value) for name, value in kwargs.items()}
    if isinstance(on_meta.get("device"), torch.device):
        on_meta["device"] = _META
    if isinstance(on_meta.get("generator"), torch.Generator):
        on_meta["generator"] = None
    with torch._C.DisableTorchFunction():
        out = func(*(_to_meta(value) for value in args), **on_meta)
        if func in _CONVOLUTIONS:
            out = tree_map_only(
                torch.Tensor, lambda t: _laid_out(t, *args[_CONVOLUTIONS[func]]), out
            )
    return out


def _shapes(out: Any) -> Any:
    return tree_map_only(torch.Tensor, Layout.plain, out)


_LIKE_ARGUMENT: Mapping[str, int] = {
    **dict.fromkeys(("aten::_logcumsumexp", "aten::_masked_softmax", "aten::binomial"), 0),
    **dict.fromkeys(("aten::_masked_softmax_backward", "aten::_sample_dirichlet"), 0),
    **dict.fromkeys(("aten::_dirichlet_grad", "aten::_standard_gamma_grad"), 0),
    **dict.fromkeys(
        (
            "aten::fractional_max_pool3d_backward",
            "aten::multi_margin_loss_backward",
            "aten::multilabel_margin_loss_backward",
        ),
        1,
    ),
}
"""Operators without a meta kernel whose result has the geometry of an argument, and its place."""

_INTO_TYPE = frozenset(
    f"aten::{product}.{overload}"
    for product in ("mm", "bmm", "addmm", "baddbmm")
    for overload in ("dtype", "dtype_out")
)
"""Products in another type than their factors', which comes last; not all versions of torch have
meta kernels for them."""

_CONVOLUTIONS = {
    _ATEN.convolution.default: slice(2),
    _ATEN.convolution_backward.default: slice(1, 3),
}
"""Where their image and weight are, which tell how results lie on CUDA; their meta kernels do not
(torch/_meta_registrations.py)."""


def _laid_out(out: torch.Tensor, image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if out.dim() < 4:
        return out
    return out.to(memory_format=kernel_format(Layout.of(image), Layout.of(weight)))


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        meta = torch.empty_strided(size_of(value), value.stride(), dtype=value.dtype, device=_META)
        return meta.conj() if value.is_conj() else meta
    if isinstance(value, (list, tuple)):
        return [_to_meta(item) for item in value]
    return value


_FACTORS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::linear"), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), (1, 2)),
}
"""Matrix products, and the places of their two factors."""

_IN_PLACE = frozenset({"aten::add_", "aten::sub_", "aten::mul_", "aten::div_"})


def check_types(name: str, args: tuple[Any, ...]) -> None:
    """Raises RuntimeError, with torch's text, where the operator refuses these types."""
    places = _FACTORS.get(name)
    if places is not None:
        one, other = (args[place].dtype for place in places)
        if one is not other:
            raise RuntimeError(
                f"mat1 and mat2 must have the same dtype, but got {named(one)} and {named(other)}"
            )
    elif name in _IN_PLACE:
        result = torch.result_type(args[0], args[1])
        if not torch.can_cast(result, args[0].dtype):
            raise RuntimeError(
                f"result type {named(result)} can't be cast to the desired output type "
                f"{named(args[0].dtype)}"
            )


def named(dtype: torch.dtype) -> str:
    """As errors of torch call it, and its old kinds of storages."""
    names = torch.storage._dtype_to_storage_type_map()
    return str(names.get(dtype, dtype)).removesuffix("Storage").removeprefix("torch.")


def shapes_among(results: Any) -> list[Layout]:
    """The shapes in what `Geometry.results` gives."""
    if isinstance(results, Layout):
        return [results]
    nested = results if isinstance(results, (list, tuple)) else ()
    return [shape for item in nested for shape in shapes_among(item)]
