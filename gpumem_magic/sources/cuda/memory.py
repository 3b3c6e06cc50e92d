"""The memory of a CUDA device, for an inventory: PyTorch's own list of its allocator's blocks."""

from __future__ import annotations

import gc
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumem_magic.allocator.settings import Settings
from gpumem_magic.allocator.snapshot import Segment
from gpumem_magic.sources.cuda.device import CUDA, is_initialized, namespace
from gpumem_magic.sources.cuda.history import Entry, parse_segments
from gpumem_magic.sources.device_memory import DeviceMemory, free_memory, used_blocks
from gpumem_magic.sources.objects.allocation_sites import AllocationSite
from gpumem_magic.sources.objects.labels import (
    CUBLAS,
    CUBLASLT,
    Workspace,
    address_of,
    lt_workspace_size,
    workspace_sizes,
)
from gpumem_magic.values.inventory import FreeMemory, Process
from gpumem_magic.values.recording import Category, Device, Reading

_CATEGORIES = tuple(Category)


class BlocksUnlistedError(RuntimeError):
    """PyTorch's allocator does not tell which blocks it has; the text is a clause that says so."""


def cuda_segments(index: int, kind: str = CUDA) -> tuple[Segment, ...]:
    """All segments of the device; none before CUDA is initialised. Raises BlocksUnlistedError."""
    return parse_segments(_snapshot(kind), index) if is_initialized(kind) else ()


def stream_ids(segments: Iterable[Segment]) -> dict[int, int]:
    """PyTorch's ids of the streams that the segments name by their handles, of those that somebody
    has: nobody else can go on with one."""
    if not any(segment.stream for segment in segments):
        return {}
    streams = (each for each in gc.get_objects() if issubclass(type(each), namespace(CUDA).Stream))
    return {stream.cuda_stream: stream.stream_id for stream in streams}


def cuda_settings(index: int) -> Settings:
    """The settings of the device's allocator as of now: those of the environment, and what cells
    have set since."""
    settings = Settings.from_environment()
    if not is_initialized():
        return settings
    torchs = namespace(CUDA)
    try:  # without the history, as memory_snapshot(include_traces=False) asks
        found = torchs.memory._C._cuda_memorySnapshot((0, 0, False))
    except TypeError:
        found = torchs.memory._snapshot()
    now = found.get("allocator_settings", {})
    if text := now.get("PYTORCH_CUDA_ALLOC_CONF"):
        settings = Settings.parse(text, settings)
        settings = replace(settings, expandable_segments=now["expandable_segments"])
    fraction = getattr(torchs, "get_per_process_memory_fraction", None)  # newer than PyTorch 2.4
    return replace(settings, memory_fraction=fraction(index)) if fraction else settings


def _snapshot(kind: str) -> Iterable[Entry]:
    torchs = namespace(kind)
    backend = torchs.get_allocator_backend() if kind == CUDA else "native"
    if backend != "native":  # c10/cuda/CUDAMallocAsyncAllocator.cpp: "not meaningful"
        raise BlocksUnlistedError(
            f"PyTorch's allocator here, {backend}, keeps no list of its blocks"
        )
    found: Iterable[Entry]
    try:
        found = torchs.memory.memory_snapshot(include_traces=False)
    except TypeError:  # older versions always add the history
        found = torchs.memory.memory_snapshot()
    return found


@dataclass(frozen=True, slots=True)
class Recorded:
    """What earlier recordings tell of the blocks that are there, by address.

    categories: as their place in Category, -1 where it was not found. sites: where each was
    allocated. workspaces: those of libraries. stepped: whether an optimizer's step came last; None
    where something else may have happened since.
    """

    categories: Mapping[int, int]
    sites: Mapping[int, AllocationSite]
    workspaces: Mapping[int, Workspace]
    stepped: bool | None

    @property
    def told(self) -> Mapping[int, Category]:
        """The categories that were found."""
        return {at: _CATEGORIES[code] for at, code in self.categories.items() if code >= 0}


def cuda_memory(
    device: Device,
    reading: Reading,
    processes: tuple[Process, ...],
    recorded: Recorded,
    kind: str = CUDA,
) -> DeviceMemory:
    """What the device's allocator holds."""
    try:
        segments = cuda_segments(device.index, kind)
    except BlocksUnlistedError as error:

        def address(storage: Any) -> int | None:
            return _address(storage, kind) if _index(storage) == device.index else None

        memory = memory_by_tensors(device, reading, recorded, str(error), address, {})
        return replace(memory, processes=processes)
    blocks, requested = used_blocks(segments)
    block_of = _containing(blocks)
    return DeviceMemory(
        device=device,
        reading=reading,
        segments=segments,
        blocks=blocks,
        requested=requested,
        free=free_memory(segments),
        locate=lambda tensor: block_of(address_of(tensor, kind)),
        locate_storage=lambda storage: block_of(_address(storage, kind)),
        processes=processes,
        told=recorded.told,
        sites=recorded.sites,
        libraries={
            address: workspace.name
            for address, workspace in recorded.workspaces.items()
            if requested.get(address) == workspace.requested
        },
        stepped=recorded.stepped,
    )


def memory_by_tensors(
    device: Device,
    reading: Reading,
    recorded: Recorded,
    why: str,
    address: Callable[[Any], int | None],
    blocks: dict[int, int],
) -> DeviceMemory:
    """What tensors tell of a device whose blocks are not listed: each storage that Python comes to,
    now or while the memory is looked at, is one block, beside those `blocks` that are known.

    address: of a storage; None where it is not on the device. why: no list is there.
    """

    def locate_storage(storage: Any) -> int | None:
        found = address(storage)
        if found is not None:
            blocks.setdefault(found, storage.nbytes())
        return found

    def locate(tensor: Any) -> int | None:
        try:
            return locate_storage(tensor.untyped_storage())
        except (RuntimeError, NotImplementedError):  # sparse, fake and functional tensors have none
            return None

    for tensor in _python_tensors():
        locate(tensor)
    unused = None
    if reading.reserved is not None and reading.allocated is not None:
        unused = max(0, reading.reserved - reading.allocated)
    return DeviceMemory(
        device=device,
        reading=reading,
        segments=(),
        blocks=blocks,
        requested=blocks,
        free=FreeMemory(unused, None, None, None),
        locate=locate,
        locate_storage=locate_storage,
        told=recorded.told,
        sites=recorded.sites,
        stepped=recorded.stepped,
        unlisted=why,
    )


def _index(storage: Any) -> int | None:
    index: int | None = storage.device.index
    return index


def _python_tensors() -> Iterator[Any]:
    """All tensors that Python's garbage collector knows."""
    import torch

    base: Any = torch._C.TensorBase
    yield from (thing for thing in gc.get_objects() if issubclass(type(thing), base))


def likely_workspaces(memory: DeviceMemory, unheld: Collection[int]) -> dict[int, str]:
    """Of blocks in which no tensor is, those that have the size of cuBLAS's workspaces; and as many
    of cuBLASLt's size, a common one."""
    sizes = workspace_sizes(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    lt_size = lt_workspace_size(os.environ.get("CUBLASLT_WORKSPACE_SIZE", ""))
    found = {address: CUBLAS for address in unheld if memory.requested[address] in sizes}
    known = Counter(memory.libraries.values())
    left = known[CUBLAS] + len(found) - known[CUBLASLT]
    for address in sorted(unheld):
        if memory.requested[address] == lt_size and address not in found and left > 0:
            found[address] = CUBLASLT
            left -= 1
    return found


def _containing(blocks: Mapping[int, int]) -> Callable[[int | None], int | None]:
    """Finds the block that an address lies in: a storage may begin inside of one."""
    starts = sorted(blocks)

    def block_of(address: int | None) -> int | None:
        if address is None or address in blocks:
            return address
        place = bisect_right(starts, address) - 1
        if place < 0 or address >= starts[place] + blocks[starts[place]]:
            return None
        return starts[place]

    return block_of


def _address(storage: Any, kind: str) -> int | None:
    try:
        return storage.data_ptr() or None if storage.device.type == kind else None
    except (RuntimeError, NotImplementedError):
        return None
