"""Copies between host and device that need a dense one on the device in between."""

from __future__ import annotations

from typing import Any

import torch

from gpumem_magic.sources.virtual.blocks import Blocks
from gpumem_magic.sources.virtual.devices import HOST
from gpumem_magic.sources.virtual.layouts import is_dense
from gpumem_magic.sources.virtual.storages import Storages

_shape: Any = torch._C.TensorBase.shape.__get__  # type: ignore[attr-defined]
"""Lazy parameters refuse to tell theirs before it is decided."""


class Transfers:
    """What copying takes besides its result (copy_requires_temporaries and copy_kernel_cuda of
    native/cuda/Copy.cu)."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def to_copy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`_to_copy` in either direction."""
        source, device = args[0], kwargs.get("device")
        leaves = source in self._storages
        if leaves and device in (None, HOST):  # it stays on the device
            return
        target = torch.empty_like(
            source,
            dtype=kwargs.get("dtype") or source.dtype,
            device="meta",
            memory_format=kwargs.get("memory_format") or torch.preserve_format,
        )
        self._take(_between(target, source, leaves, bool(kwargs.get("non_blocking"))))

    def copy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`copy_` in either direction."""
        target, source = args[:2]
        if (target in self._storages) is (source in self._storages):
            return
        waits_not = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        self._take(_between(target, source, source in self._storages, bool(waits_not)))

    def where(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Place what `where` returns, beside numbers of the host (where_self_out of
        native/TensorCompare.cpp)."""
        with Blocks(self._storages) as numbers:
            for operand in args[1:]:
                if operand not in self._storages:
                    numbers.take(out.dtype.itemsize)
            self._storages.place(out)

    def _take(self, size: int) -> None:
        self._storages.release(self._storages.malloc(size))


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
    shapes = _shape(first), _shape(second)
    if shapes[0] != shapes[1]:
        return first.numel() == 1 and second.numel() == 1
    return is_dense(first) and all(
        n == 1 or a == b for n, a, b in zip(shapes[0], first.stride(), second.stride(), strict=True)
    )
