"""What torch.cuda and torch.accelerator answer while the virtual GPU is on.

torch's own Python code stays in place and asks the simulated allocator: what is replaced are the
C++ functions below it. A call that is not covered raises NotImplementedError that names it.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, NoReturn

import torch

from gpumem_magic.units import KIB, MIB
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.devices import is_cuda
from gpumem_magic.virtual.patches import AbsentError, Patches, absent, not_covered
from gpumem_magic.virtual.random import DeviceRandom
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda import streams
from gpumem_magic.virtual.workspaces.reductions import Processors
from gpumem_magic.virtual.workspaces.scratch import ScratchMemory

_NOT_COVERED = (
    "CUDAGraph CUDAPluggableAllocator ExternalStream GreenContext MemPool caching_allocator_alloc "
    "caching_allocator_delete change_current_allocator clock_rate current_blas_handle "
    "current_solver_handle device_memory_used get_stream_from_external graph graph_pool_handle "
    "list_gpu_processes make_graphed_callables memory_usage power_draw temperature use_mem_pool "
    "utilization"
).split()

_ACCELERATOR = {
    "getDeviceIndex": "_cuda_getDevice",
    "setDeviceIndex": "_cuda_setDevice",
    "exchangeDevice": "_cuda_exchangeDevice",
    "maybeExchangeDevice": "_cuda_maybeExchangeDevice",
    "isAllocatorInitialized": "_cuda_cudaCachingAllocator_is_enabled",
    "emptyCache": "_cuda_emptyCache",
    "getDeviceStats": "_cuda_memoryStats",
    "resetAccumulatedStats": "_cuda_resetAccumulatedMemoryStats",
    "resetPeakStats": "_cuda_resetPeakMemoryStats",
}
"""What torch.accelerator asks that is the same for torch.cuda."""


_SHARED_MEMORY = {
    **{(3, 7): (48, 112), (6, 0): (48, 64), (6, 1): (48, 96), (7, 0): (96, 96), (7, 5): (64, 64)},
    **{(8, 0): (163, 164), (8, 6): (99, 100), (8, 9): (99, 100), (9, 0): (227, 228)},
    **{(10, 0): (227, 228), (12, 0): (99, 100)},
}
"""KiB of a thread block that asks for it and of a multiprocessor, by compute capability: "technical
specifications" of the CUDA programming guide."""

_L2_CACHES = {
    **{"K80": 1.5, "P100-16GB": 4, "GTX1080Ti": 2.75, "V100-16GB": 6, "V100-32GB": 6, "T4": 4},
    **{"RTX2080Ti": 5.5, "A100-40GB": 40, "A100-80GB": 40, "A30": 24, "A10": 6, "A10G": 6},
    **{"A40": 6, "RTXA5000": 6, "RTXA6000": 6, "RTX3060": 3, "RTX3080": 5, "RTX3090": 6},
    **{"L4": 48, "L40S": 96, "RTX4070TiSUPER": 48, "RTX4080": 64, "RTX4090": 72},
    **{"H100-80GB": 50, "H200": 50, "B200": 126, "RTX5090": 96, "RTXPRO6000": 128},
}
"""MiB, by card: NVIDIA's architecture white papers and data sheets."""

_A100_L2_CACHE = 40  # of an imaginary card, whose compute capability is an A100's


class DeviceProperties:
    """torch.cuda.get_device_properties of a card of the catalog."""

    def __init__(self, model: GPUModel) -> None:
        self.name = model.name
        self.major, self.minor = model.capability
        self.total_memory = model.total
        self.multi_processor_count = model.multiprocessors
        self.is_integrated = self.is_multi_gpu_board = 0
        self.warp_size = 32
        processors = Processors.of(model.multiprocessors, model.capability)
        self.max_threads_per_multi_processor = processors.threads
        self.max_threads_per_block = 1024
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 48 * KIB
        optin, whole = _SHARED_MEMORY.get(model.capability, (48, 64))
        self.shared_memory_per_block_optin = optin * KIB
        self.shared_memory_per_multiprocessor = whole * KIB
        self.L2_cache_size = int(_L2_CACHES.get(model.key, _A100_L2_CACHE) * MIB)
        self.gcnArchName = model.name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AbsentError(
            f"torch.cuda.get_device_properties().{name} is not covered by the virtual GPU"
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


def _check_index(index: int) -> None:
    """Raise as CUDA does for a card that is not there."""
    if index != 0:
        raise RuntimeError(
            "CUDA error: invalid device ordinal\n(the virtual GPU has one card, cuda:0)"
        )


class CudaRuntime:
    """The part of the CUDA runtime that Python code reaches through torch.cuda.cudart()."""

    class cudaError:  # noqa: N801, D106 - the runtime's own name
        success = 0

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802, D102 - as above
        _check_index(device)
        driver = self._storages.allocator.driver
        return driver.free, driver.total

    def cudaProfilerStart(self) -> int:  # noqa: N802, D102
        return 0

    def cudaProfilerStop(self) -> int:  # noqa: N802, D102
        return 0

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"torch.cuda.cudart().{name} is not covered by the virtual GPU")


class CudaApi:
    """The functions of torch._C that answer for the card, by the name they have there."""

    def __init__(
        self, model: GPUModel, storages: Storages, scratch: ScratchMemory, random: DeviceRandom
    ) -> None:
        self._model = model
        self._storages = storages
        self._scratch = scratch
        self._random = random
        self._sync_debug_mode = 0
        self._fraction = 1.0

    def install(self, patches: Patches) -> None:
        """Replace what torch.cuda and torch.accelerator stand on."""
        for name, function in inspect.getmembers(self, inspect.ismethod):
            if name.startswith(("_cuda_", "_accelerator_")):
                patches.set(torch._C, name, function)
        for name, same in _ACCELERATOR.items():
            patches.set(torch._C, f"_accelerator_{name}", getattr(self, same))
        cuda: Any = torch.cuda
        patches.set(cuda, "_initialized", True)
        patches.set(cuda, "_cached_device_count", 1)
        patches.set(cuda, "_lazy_init", lambda: None)
        patches.set(cuda, "_nvml_based_avail", lambda: False)
        patches.set(cuda, "_cudart", CudaRuntime(self._storages))
        patches.set(cuda, "_get_device_properties", lambda index: DeviceProperties(self._model))
        patches.set(cuda, "_exchange_device", self._cuda_exchangeDevice)
        patches.set(cuda, "_maybe_exchange_device", self._cuda_maybeExchangeDevice)
        patches.set(cuda, "default_generators", (self._random.generator,))
        self._install_streams(patches)
        patches.set(
            cuda.graphs, "_cuda_isCurrentStreamCapturing", self._cuda_isCurrentStreamCapturing
        )
        patches.set(torch._C, "__getattr__", absent)
        patches.set(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))
        patches.set(torch._C, "_scatter", lambda tensor, *layout: (tensor.to("cuda"),))
        for name in ("_gather", "_broadcast", "_broadcast_coalesced", "_broadcast_out"):
            patches.set(torch._C, name, not_covered(f"torch.cuda.comm.{name.strip('_')}"))
        for name in _NOT_COVERED:
            for module in (cuda, cuda.memory, cuda.graphs):
                if hasattr(module, name):
                    stand_in = not_covered(f"torch.cuda.{name}", getattr(module, name))
                    patches.set(module, name, stand_in)
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            patches.set(cuda.nvtx, name, lambda *args, **kwargs: 0)
        nested: Any = torch._C._nested  # type: ignore[attr-defined]
        patches.set(nested, "nested_tensor", _nested_on_host(nested.nested_tensor))
        autograd: Any = torch.autograd
        states = dict(autograd.ProfilerState.__members__)
        states["KINETO_GPU_FALLBACK"] = states["KINETO"]  # which profiles what the host computes
        patches.set(autograd.profiler, "ProfilerState", types.SimpleNamespace(**states))

    def _install_streams(self, patches: Patches) -> None:
        stream = type("Stream", (streams.StreamBase,), {"storages": self._storages})
        cuda: Any = torch.cuda
        for module in (cuda, cuda.streams):
            patches.set(module, "Stream", stream)
            patches.set(module, "Event", streams.Event)
        patches.set(torch, "Stream", streams.of_any_device(torch.Stream, stream))
        patches.set(torch, "Event", streams.of_any_device(torch.Event, streams.Event))

    def _cuda_init(self) -> None:
        """The card is ready at once."""

    def _cuda_isInBadFork(self) -> bool:  # noqa: N802 - these are torch's names, here and below
        return self._storages.is_in_bad_fork

    def _cuda_getDeviceCount(self) -> int:  # noqa: N802
        return 1

    def _cuda_getDevice(self) -> int:  # noqa: N802
        return 0

    def _cuda_setDevice(self, index: int) -> None:  # noqa: N802
        _check_index(index)

    def _cuda_exchangeDevice(self, index: int) -> int:  # noqa: N802
        if index >= 0:
            self._cuda_setDevice(index)
        return 0

    def _cuda_maybeExchangeDevice(self, index: int) -> int:  # noqa: N802
        return self._cuda_exchangeDevice(index)

    def _cuda_getArchFlags(self) -> str:  # noqa: N802
        major, minor = self._model.capability
        return f"sm_{major}{minor}"

    def _cuda_canDeviceAccessPeer(self, device: int, peer: int) -> bool:  # noqa: N802
        return False

    def _cuda_synchronize(self) -> None:
        self._storages.allocator.synchronize()

    def _cuda_sleep(self, cycles: int) -> None:
        """Work takes no time on the virtual GPU."""

    def _cuda_ipc_collect(self) -> None:
        """There are no other processes."""

    def _cuda_get_sync_debug_mode(self) -> int:
        return self._sync_debug_mode

    def _cuda_set_sync_debug_mode(self, mode: int) -> None:
        self._sync_debug_mode = mode

    def _cuda_memoryStats(self, device: int) -> dict[str, Any]:  # noqa: N802
        _check_index(device)
        nested: dict[str, Any] = {}
        for key, value in self._storages.allocator.stats().items():
            *path, leaf = key.split(".")
            inner = nested
            for part in path:
                inner = inner.setdefault(part, {})
            inner[leaf] = value
        return nested

    def _cuda_resetAccumulatedMemoryStats(self, device: int) -> None:  # noqa: N802
        _check_index(device)
        self._storages.allocator.reset_accumulated()

    def _cuda_resetPeakMemoryStats(self, device: int) -> None:  # noqa: N802
        _check_index(device)
        self._storages.allocator.reset_peaks()

    def _cuda_hostMemoryStats(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def _cuda_resetAccumulatedHostMemoryStats(self) -> None:  # noqa: N802
        """Pinned memory is not counted."""

    def _cuda_resetPeakHostMemoryStats(self) -> None:  # noqa: N802
        """Pinned memory is not counted."""

    def _cuda_emptyCache(self) -> None:  # noqa: N802
        self._storages.allocator.empty_cache()

    def _cuda_clearCublasWorkspaces(self) -> None:  # noqa: N802
        self._scratch.clear()

    def _cuda_getMemoryFraction(self, device: int) -> float:  # noqa: N802
        return self._fraction

    def _cuda_setMemoryFraction(self, fraction: float, device: int) -> None:  # noqa: N802
        _check_index(device)
        self._fraction = fraction
        self._storages.allocator.set_memory_fraction(fraction)

    def _cuda_getAllocatorBackend(self) -> str:  # noqa: N802
        return "native"

    def _cuda_cudaCachingAllocator_is_enabled(self) -> bool:  # noqa: N802
        return True

    def _cuda_memorySnapshot(self, *request: Any) -> dict[str, Any]:  # noqa: N802
        segments = [
            {
                "device": 0,
                "address": s.address,
                "total_size": s.size,
                "allocated_size": sum(b.size for b in s.blocks if b.state == "active_allocated"),
                "active_size": sum(b.size for b in s.blocks if b.state != "inactive"),
                "requested_size": sum(b.requested for b in s.blocks if b.state != "inactive"),
                "stream": s.stream,
                "segment_type": s.pool,
                "segment_pool_id": (0, 0),
                "is_expandable": s.expandable,
                "frames": [],
                "blocks": [
                    {
                        "address": b.address,
                        "size": b.size,
                        "requested_size": b.requested,
                        "state": b.state,
                        "frames": [],
                    }
                    for b in s.blocks
                ],
            }
            for s in self._storages.allocator.snapshot()
        ]
        return {"segments": segments, "device_traces": [[]], "allocator_settings": {}}

    def _cuda_record_memory_history(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "torch.cuda.memory._record_memory_history is not covered by the virtual GPU; "
            "measure the cell with %%gpumem instead"
        )

    def _cuda_getCurrentStream(self, index: int) -> tuple[int, int, int]:  # noqa: N802
        _check_index(index)
        return self._storages.stream, 0, 1

    def _cuda_getDefaultStream(self, index: int) -> tuple[int, int, int]:  # noqa: N802
        _check_index(index)
        return 0, 0, 1

    def _cuda_setStream(self, stream_id: int, device_index: int, device_type: int) -> None:  # noqa: N802
        self._storages.stream = stream_id

    def _cuda_getCurrentRawStream(self, index: int) -> int:  # noqa: N802
        return self._storages.stream

    def _cuda_isCurrentStreamCapturing(self) -> bool:  # noqa: N802
        return False

    def _accelerator_getAccelerator(self) -> torch.device:  # noqa: N802
        return torch.device("cuda")

    def _accelerator_getStream(self, index: int) -> Any:  # noqa: N802
        return torch.cuda.current_stream(index)

    def _accelerator_setStream(self, stream: Any) -> None:  # noqa: N802
        torch.cuda.set_stream(stream)

    def _accelerator_synchronizeDevice(self, index: int) -> None:  # noqa: N802
        _check_index(index)
        self._cuda_synchronize()

    def _accelerator_emptyHostCache(self) -> None:  # noqa: N802
        """Pinned memory is not cached."""

    def _accelerator_getDeviceCapability(self, index: int) -> NoReturn:  # noqa: N802
        raise NotImplementedError(
            "torch.accelerator.get_device_capability is not covered by the virtual GPU; "
            "torch.cuda.get_device_capability is"
        )

    def _accelerator_getMemoryInfo(self, index: int) -> tuple[int, int]:  # noqa: N802
        _check_index(index)
        driver = self._storages.allocator.driver
        return driver.free, driver.total


def _nested_on_host(make: Any) -> Any:
    """`make`, which knows of no GPU, for tensors of the host."""

    def nested_tensor(tensors: Any, *, device: Any = None, **options: Any) -> Any:
        if is_cuda(device):
            raise NotImplementedError(
                "torch.nested.nested_tensor on the GPU is not covered by the virtual GPU, but with "
                "layout=torch.jagged"
            )
        return make(tensors, device=device, **options)

    return nested_tensor
