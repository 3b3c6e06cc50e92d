"""Whether what an operator will make has room on the card and on the host, asked before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from gpumem_magic.sources.host_memory import SPARED, host_memory
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.virtual.kernels.geometry import ask_meta_kernel
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.traits import Traits

_MUCH = 512 * MIB
"""Bytes of results that are asked for before they are made."""

_STEP = 64 * MIB
"""Bytes by which the card's memory changes between two looks at the host's."""

_LARGEST_ELEMENT = 16  # bytes: complex128

_KEPT = 4096
"""Shapes whose results are known to be small."""

_Key = tuple[Any, ...] | None

Look = Callable[[], tuple[int, int]]
"""Bytes of the host's memory in all, and those that can be had."""


class HostMemoryError(MemoryError):
    """The values of what is on the virtual GPU do not fit into the host's memory."""


class Headroom:
    """What is on the virtual GPU is computed in host memory, and that can end before the card's
    does: then the system would end the process. total: bytes of the card. look: tells the host's
    memory."""

    def __init__(self, storages: Storages, total: int, look: Look = host_memory) -> None:
        self._storages = storages
        self._total = total
        self._look = look
        self._seen = 0
        self._small: set[_Key] = {()}

    def without_room(
        self,
        traits: Traits,
        operands: list[torch.Tensor],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor | None:
        """The first result that has no room on the card, as a meta tensor. Raises HostMemoryError
        where the host has none for the results. operands: the tensors among what `func` is given.
        """
        results = self._large_results(self._key(traits, operands, func), func, args, kwargs)
        free = self._total - self._storages.allocator.allocated
        for result in results:
            if result.untyped_storage().nbytes() > free:
                return result
            free -= result.untyped_storage().nbytes()
        self.check_host(_bytes(results))
        return None

    def check_host(self, size: int) -> None:
        """Raises HostMemoryError unless the host has `size` bytes more."""
        allocated = self._storages.allocator.allocated
        if abs(allocated + size - self._seen) < _STEP:
            return
        self._seen = allocated
        try:
            total, free = self._look()
        except OSError:
            return
        if free - size < SPARED * total:
            raise HostMemoryError(_words(size, free))

    def _large_results(
        self, key: _Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        """The results as meta tensors, where they have many bytes."""
        if key in self._small:
            return ()
        results = tuple(_results(func, args, kwargs))
        if _bytes(results) >= _MUCH:
            return results
        if key is not None:
            if len(self._small) > _KEPT:
                self._small = {()}
            self._small.add(key)
        return ()

    def _key(self, traits: Traits, operands: list[torch.Tensor], func: Any) -> _Key:
        """What tells the sizes of results: () where they are small whatever the operator does, None
        where it is not only shapes."""
        if not operands or traits.grows:
            return None
        *others, largest = sorted(tensor.numel() for tensor in operands)
        if _LARGEST_ELEMENT * largest * (sum(others) or 1) < _MUCH:
            return ()
        return (func, *(tensor.shape for tensor in operands))


def _words(size: int, free: int) -> str:
    need = f"this operator would make {format_bytes(size)} more" if size else "it is nearly used up"
    return (
        f"the virtual GPU computes in the host's memory, of which {format_bytes(free)} are left: "
        f"{need}. %%gpucheck instead of %%gpumem tells what a cell takes without computing it, "
        "whatever its size"
    )


def _bytes(results: Iterable[torch.Tensor]) -> int:
    return sum(result.untyped_storage().nbytes() for result in results)


def _results(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """What the operator will make, as meta tensors, told by torch's own shape rules."""
    try:
        with torch._C._DisableTorchDispatch():
            results = ask_meta_kernel(func, args, kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return  # values decide, or the kernel will say what is wrong
    for result in results if isinstance(results, (tuple, list)) else (results,):
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            yield result
