"""Element types that CUDA's kernels take and the CPU's do not: computed in a wider one."""

from __future__ import annotations

from typing import Any

import torch

from gpumem_magic.virtual.traits import tensors_among

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
_COUNTS = frozenset({"aten::histc"})
"""Operators that take integers on CUDA (native/cuda/SummaryOps.cu) and not on the CPU."""


def lacks_dtype(error: RuntimeError, func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a CPU kernel has refused an element type ('"histogram_cpu" not implemented for
    'Int'') that CUDA's takes."""
    if "not implemented for '" not in str(error):
        return False
    return any(_wider(func, tensor.dtype) for tensor in tensors_among(args, {}))


def run_wider(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`func` on wider copies of its arguments; the results are in the type it was called with."""
    narrow = next(t.dtype for t in tensors_among(args, {}) if _wider(func, t.dtype))
    wide = _wider(func, narrow)
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def widen(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [widen(item) for item in value]
        if isinstance(value, torch.Tensor) and value.dtype is narrow:
            copies.append((value, value.to(wide)))
            return copies[-1][1]
        return wide if value is narrow else value

    def narrowed(out: Any) -> Any:
        if isinstance(out, (list, tuple)):
            return type(out)(narrowed(item) for item in out)
        if not isinstance(out, torch.Tensor):
            return out
        written = next((original for original, copy in copies if copy is out), None)
        if written is not None:
            return written
        return out.to(narrow) if out.dtype is wide else out

    out = func(*map(widen, args), **{name: widen(value) for name, value in kwargs.items()})
    if func._schema.is_mutable:
        for original, copy in copies:
            original.copy_(copy)
    return narrowed(out)


def _wider(func: Any, dtype: torch.dtype) -> torch.dtype | None:
    if func._schema.name in _COUNTS and not dtype.is_floating_point and not dtype.is_complex:
        return torch.float64
    return _WIDER.get(dtype)
