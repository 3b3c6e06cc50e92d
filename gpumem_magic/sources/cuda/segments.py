"""What PyTorch's allocator holds of a CUDA device, as it tells itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpumem_magic.allocator.snapshot import Segment
from gpumem_magic.sources.cuda.device import CUDA, is_initialized, namespace
from gpumem_magic.sources.cuda.history import parse_segments


class BlocksUnlistedError(RuntimeError):
    """PyTorch's allocator does not tell which blocks it has; the text is a clause that says so."""


def cuda_segments(index: int, kind: str = CUDA) -> tuple[Segment, ...]:
    """All segments of the device; none before CUDA is initialised. Raises BlocksUnlistedError."""
    if not is_initialized(kind):
        return ()
    return parse_segments(_snapshot(kind), index)


def _snapshot(kind: str) -> Iterable[Mapping[str, Any]]:
    torchs = namespace(kind)
    backend = torchs.get_allocator_backend() if kind == CUDA else "native"
    if backend != "native":  # c10/cuda/CUDAMallocAsyncAllocator.cpp: "not meaningful"
        raise BlocksUnlistedError(
            f"PyTorch's allocator here, {backend}, keeps no list of its blocks"
        )
    found: Iterable[Mapping[str, Any]]
    try:
        found = torchs.memory.memory_snapshot(include_traces=False)
    except TypeError:  # older versions always add the history
        found = torchs.memory.memory_snapshot()
    return found
