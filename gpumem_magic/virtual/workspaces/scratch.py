"""Memory of the device that operators take besides their results: workspaces that stay, buffers
that go at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gpumem_magic.sources.objects.labels import (
    CUBLAS,
    CUBLASLT,
    lt_workspace_size,
    workspace_sizes,
)
from gpumem_magic.virtual import devices
from gpumem_magic.virtual.storages import Blocks, Storages
from gpumem_magic.virtual.workspaces.reductions import Operand, Processors, reduction_buffers

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
"""What an operator was called with."""

Results = tuple[torch.Tensor | None, ...]
"""What it has made; None: nobody wanted it."""

_PLACES = frozenset({"argmax", "argmin"})
"""Their partial results are a value and its place."""

_WITH_PLACES = frozenset({"max", "min"})
"""So they are here, along a dimension."""

INDEX = 8
"""Bytes of an index, a length or a count."""

_ORDERS = frozenset("amax amin max min".split())
"""They keep values as they are; other reductions combine them in float32 at least."""

_WELFORD = frozenset({"std", "var", "std_mean", "var_mean"})


def cublas_workspace_size(capability: tuple[int, int], config: str = "") -> int:
    """Bytes of one cuBLAS workspace. config: CUBLAS_WORKSPACE_CONFIG (":4096:2:16:8" in KiB)."""
    sizes = workspace_sizes(config)
    large = (9,) if devices.RELEASE < (2, 12) else (9, 10, 12)
    return sizes[-1] if capability[0] in large else sizes[0]


_SHARES, _GIVES_BACK = (2, 12), (2, 15)
"""From which releases on cuBLASLt shares the workspace of cuBLAS; both are given back at once
(ATen/cuda/CublasHandlePool.cpp)."""


def _are_kept() -> bool:
    """Whether the libraries' workspaces are."""
    return devices.RELEASE < _GIVES_BACK or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def _used_by_lt() -> tuple[str, ...]:
    """Whose workspaces a product of cuBLASLt takes."""
    asked = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    shares = asked == "1" if asked in ("0", "1") else devices.RELEASE >= _SHARES
    if shares and _are_kept():
        return (CUBLAS,)
    return (CUBLASLT,) if devices.RELEASE >= _SHARES else (CUBLAS, CUBLASLT)


_DROPOUT_STATES = "cuDNN dropout states"


class ScratchMemory:
    """The scratch memory of one device.

    cuBLAS and cuBLASLt take one workspace per handle and stream, and up to PyTorch 2.14 keep it;
    the thread that runs backward on a GPU has a handle of its own. `held`: their addresses.
    highest: how many bytes may have been allocated within a convolution, with what cuDNN takes for
    it; likely: how many likely were; 0 before the first.
    """

    def __init__(
        self, storages: Storages, processors: Processors, capability: tuple[int, int]
    ) -> None:
        self.storages = storages
        self.processors = processors
        self.capability = capability
        self._sizes: dict[str, int] = {}
        self.held: dict[tuple[str, bool, int], int] = {}
        self.highest = self.likely = 0
        self._benchmarked: set[tuple[Any, ...]] = set()

    def place(self, *results: torch.Tensor | None) -> None:
        """Put the results that there are on the device. Raises torch.OutOfMemoryError."""
        for result in results:
            if result is not None:
                self.storages.place(result)

    def place_as(self, result: torch.Tensor, size: int) -> None:
        """Put a result on the device that has `size` bytes there, unlike on the host."""
        if result not in self.storages:
            self.storages.place(result, self.storages.malloc(size))

    def blocks(self) -> Blocks:
        """Blocks to be taken within a `with` statement, and given back at its end."""
        return Blocks(self.storages)

    def borrow(self, *sizes: int) -> None:
        """Take blocks of so many bytes, and give them back at once."""
        self.storages.borrow(*sizes)

    def may_rise(self, most: int, likely: int) -> None:
        """Up to `most` bytes may be taken here for a moment, and likely are `likely`; none is."""
        allocated = self.storages.allocator.allocated
        self.highest = max(self.highest, allocated + most)
        self.likely = max(self.likely, allocated + likely)

    def benchmark(self, *shape: Any) -> None:
        """cuDNN tries all algorithms for a convolution that this thread has not run yet."""
        key = (torch._C._current_graph_task_id() != -1, *shape)
        if key not in self._benchmarked:
            self._benchmarked.add(key)
            self.storages.allocator.empty_cache()

    def find_workspaces(self, blocks: Iterable[tuple[int, int, int]]) -> None:
        """Take blocks that no tensor is in, each (bytes, stream, address), for the workspaces whose
        sizes they have: as the environment says now, or as torch has it before a cell writes there.
        The first of each on a stream is that of the forward pass, the next that of the backward
        one."""
        blocks = tuple(blocks)
        for library in (CUBLAS, CUBLASLT) if _are_kept() else ():
            for size in (self._size(library), self._size_in({}, library)):
                found = [(stream, address) for asked, stream, address in blocks if asked == size]
                if found:
                    self._sizes[library] = size
                    break
            for stream in {stream for stream, _ in found}:
                of_stream = [address for on, address in found if on == stream]
                for in_backward, address in zip((False, True), of_stream, strict=False):
                    self.held[library, in_backward, stream] = address

    def multiply(self, by_lt: bool = False) -> None:
        """Take the workspaces of a product, where there are none yet. by_lt: it is cuBLASLt's."""
        for library in _used_by_lt() if by_lt else (CUBLAS,):
            self._take_workspace(library)

    def clear(self) -> None:
        """Give all workspaces back, as torch._C._cuda_clearCublasWorkspaces does."""
        for key in [key for key in self.held if key[0] != _DROPOUT_STATES]:
            self.storages.release(self.held.pop(key))

    def hold_dropout_states(self, size: int) -> None:
        """The device's only ones (get_dropout_state in cudnn/RNN.cpp); a seed is drawn first."""
        if (_DROPOUT_STATES, False, 0) not in self.held:
            self.borrow(8)
            self.held[_DROPOUT_STATES, False, 0] = self.storages.malloc(size)

    def _take_workspace(self, library: str) -> None:
        key = library, torch._C._current_graph_task_id() != -1, self.storages.stream
        if key not in self.held:
            size = self._sizes.setdefault(library, self._size(library))
            if _are_kept():
                self.held[key] = self.storages.malloc(size)
            else:
                self.borrow(size)

    def _size(self, library: str) -> int:
        """Of a library's workspace: as it was first taken; before, as the environment says now,
        where what is imported may write."""
        if library in self._sizes:
            return self._sizes[library]
        return self._size_in(os.environ, library)

    def _size_in(self, environment: Mapping[str, str], library: str) -> int:
        if library == CUBLAS:
            config = environment.get("CUBLAS_WORKSPACE_CONFIG", "")
            return cublas_workspace_size(self.capability, config)
        return lt_workspace_size(environment.get("CUBLASLT_WORKSPACE_SIZE", ""))

    def reduce(self, tensor: torch.Tensor, dims: Any, operator: str) -> None:
        """Take the buffers of a reduction of `tensor` over `dims`; None: over all."""
        welford = operator in _WELFORD
        accumulator = tensor.dtype.itemsize
        if operator not in _ORDERS and tensor.dtype is not torch.bool:
            accumulator = max(4, accumulator)
        if operator in _PLACES or (operator in _WITH_PLACES and dims):
            accumulator = 2 * INDEX
        self.borrow(
            *reduction_buffers(
                Operand(
                    tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.itemsize
                ),
                tuple(dims or range(tensor.dim())),
                4 * accumulator if welford else accumulator,
                self.processors,
                vector=2 if welford else 4,
            )
        )
