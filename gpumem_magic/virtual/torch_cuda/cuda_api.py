"""What torch.cuda and torch.accelerator answer while the virtual GPU is on.

torch's own Python code stays in place and asks the simulated allocator: what is replaced are the
C++ functions below it. A call that is not covered raises NotImplementedError that names it.
"""

from __future__ import annotations

import os
import types
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from gpumem_magic.allocator.settings import Settings
from gpumem_magic.units import KIB, MIB
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.devices import checked, is_cuda
from gpumem_magic.virtual.patches import AbsentError, Patches, absent, not_covered
from gpumem_magic.virtual.random import DeviceRandom
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda import streams
from gpumem_magic.virtual.workspaces.reductions import Processors
from gpumem_magic.virtual.workspaces.scratch import ScratchMemory

_NOT_COVERED = (
    "CUDAGraph CUDAPluggableAllocator ExternalStream GreenContext MemPool change_current_allocator "
    "current_blas_handle current_solver_handle get_stream_from_external graph_pool_handle "
    "use_mem_pool"
).split()

_AT_REST = "clock_rate memory_usage power_draw temperature utilization".split()
"""What torch.cuda reads of the driver: it is 0 of a card that does nothing."""

_SAME_FOR_ACCELERATOR = {
    "setDevice": "setDeviceIndex",
    "exchangeDevice": "exchangeDevice",
    "maybeExchangeDevice": "maybeExchangeDevice",
    "emptyCache": "emptyCache",
    "memoryStats": "getDeviceStats",
    "resetAccumulatedMemoryStats": "resetAccumulatedStats",
    "resetPeakMemoryStats": "resetPeakStats",
}
"""What torch.accelerator asks that is the same for torch.cuda, and its name there."""

_ANSWERS: dict[str, object] = {
    **dict.fromkeys(("_cuda_init", "_cuda_sleep", "_cuda_ipc_collect"), None),
    **{"_cuda_getDeviceCount": 1, "_cuda_getDevice": 0, "_accelerator_getDeviceIndex": 0},
    "_cuda_canDeviceAccessPeer": False,
    "_cuda_isCurrentStreamCapturing": False,
    "_cuda_getAllocatorBackend": "native",
    "_cuda_cudaCachingAllocator_is_enabled": True,
    "_accelerator_isAllocatorInitialized": True,
    "_accelerator_getAccelerator": torch.device("cuda"),
    **dict.fromkeys(("_host_emptyCache", "_accelerator_emptyHostCache"), None),
    "_cuda_hostMemoryStats": {},  # pinned memory is not counted, nor cached
    "_cuda_resetAccumulatedHostMemoryStats": None,
    "_cuda_resetPeakHostMemoryStats": None,
}
"""What is always the same: there is one card, ready at once, whose work takes no time."""


class CudaRuntime:
    """The part of the CUDA runtime that Python code reaches through torch.cuda.cudart()."""

    class cudaError:  # noqa: N801, D106 - the runtime's own name
        success = 0

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802, D102 - as above
        checked(device)
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
    """The functions of torch._C that answer for the card."""

    def __init__(
        self, model: GPUModel, storages: Storages, scratch: ScratchMemory, random: DeviceRandom
    ) -> None:
        self._model = model
        self._storages = storages
        self._scratch = scratch
        self._random = random
        self._sync_debug_mode = 0

    def install(self, patches: Patches) -> None:
        """Replace what torch.cuda and torch.accelerator stand on."""
        for name, answer in _ANSWERS.items():
            patches.set(torch._C, name, _always(answer))
        functions = self._functions()
        for name, function in functions.items():
            patches.set(torch._C, f"_cuda_{name}", function)
            if name in _SAME_FOR_ACCELERATOR:
                patches.set(torch._C, f"_accelerator_{_SAME_FOR_ACCELERATOR[name]}", function)
        for name, function in self._of_accelerator().items():
            patches.set(torch._C, f"_accelerator_{name}", function)
        cuda: Any = torch.cuda
        patches.set(cuda, "_initialized", True)
        patches.set(cuda, "_cached_device_count", 1)
        patches.set(cuda, "_lazy_init", self._storages.check_process)
        patches.set(cuda, "_is_in_bad_fork", lambda: self._storages.is_in_bad_fork)
        patches.set(cuda, "_nvml_based_avail", lambda: False)
        patches.set(cuda, "_cudart", CudaRuntime(self._storages))
        properties = DeviceProperties(self._model)
        patches.set(cuda, "_get_device_properties", lambda index: properties)
        patches.set(cuda, "device_memory_used", lambda device=None: self._used())
        for module in (cuda, cuda.memory):
            patches.set(module, "list_gpu_processes", self._list_processes)
        timeline = "export_memory_timeline"
        stand_in = not_covered(f"torch.profiler.profile.{timeline}")
        patches.set(torch.profiler.profile, timeline, stand_in)
        patches.set(cuda, "_exchange_device", _exchange_device)
        patches.set(cuda, "_maybe_exchange_device", _maybe_exchange_device)
        patches.set(cuda, "default_generators", (self._random.generator,))
        self._install_streams(patches)
        patches.set(cuda.graphs, "_cuda_isCurrentStreamCapturing", _always(False))
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
        for name in _AT_REST:
            patches.set(cuda, name, lambda device=None: 0)
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            patches.set(cuda.nvtx, name, lambda *args, **kwargs: 0)
        nested: Any = torch._C._nested  # type: ignore[attr-defined]
        patches.set(nested, "nested_tensor", _nested_on_host(nested.nested_tensor))
        autograd: Any = torch.autograd
        states = dict(autograd.ProfilerState.__members__)
        states["KINETO_GPU_FALLBACK"] = states["KINETO"]  # which profiles what the host computes
        patches.set(autograd.profiler, "ProfilerState", types.SimpleNamespace(**states))

    def _used(self) -> int:
        free, total = self._memory()
        return total - free

    def _memory(self) -> tuple[int, int]:
        driver = self._storages.allocator.driver
        return driver.free, driver.total

    def _list_processes(self, device: Any = None) -> str:
        """torch.cuda.list_gpu_processes, which asks NVML."""
        found = [
            f"process {one.pid or os.getpid():>10d} uses {one.used / MIB:>12.3f} MB GPU memory"
            for one in self._storages.allocator.driver.processes()
        ]
        return "\n".join(("GPU:0", *(found or ["no processes are running"])))

    def _install_streams(self, patches: Patches) -> None:
        stream = type("Stream", (streams.StreamBase,), {"storages": self._storages})
        cuda: Any = torch.cuda
        for module in (cuda, cuda.streams):
            patches.set(module, "Stream", stream)
            patches.set(module, "Event", streams.Event)
        patches.set(torch, "Stream", streams.of_any_device(torch.Stream, stream))
        patches.set(torch, "Event", streams.of_any_device(torch.Event, streams.Event))

    def _functions(self) -> dict[str, Any]:
        """By the name in torch._C, without its `_cuda_`."""
        storages, major_minor = self._storages, "".join(map(str, self._model.capability))
        return {
            "isInBadFork": lambda: storages.is_in_bad_fork,
            "setDevice": _set_device,
            "exchangeDevice": _exchange_device,
            "maybeExchangeDevice": _exchange_device,
            "getArchFlags": lambda: f"sm_{major_minor}",
            "synchronize": self._of_allocator("synchronize"),
            "get_sync_debug_mode": lambda: self._sync_debug_mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "_sync_debug_mode", mode),
            "memoryStats": _of_card(self._stats),
            "resetAccumulatedMemoryStats": self._of_allocator("reset_accumulated"),
            "resetPeakMemoryStats": self._of_allocator("reset_peaks"),
            "emptyCache": self._of_allocator("empty_cache"),
            "clearCublasWorkspaces": self._scratch.clear,
            "getMemoryFraction": _of_card(lambda: storages.allocator.settings.memory_fraction),
            "setMemoryFraction": self._set_fraction,
            "cudaCachingAllocator_raw_alloc": self._raw_alloc,
            "cudaCachingAllocator_raw_delete": storages.release,
            "cudaCachingAllocator_set_allocator_settings": self._set_settings,  # until torch 2.9
            "getCurrentStream": _of_card(lambda: (storages.stream, 0, 1)),
            "getDefaultStream": _of_card(lambda: (0, 0, 1)),
            "setStream": lambda stream_id, **device: setattr(storages, "stream", stream_id),
            "getCurrentRawStream": lambda index: storages.stream,
        }

    def _of_accelerator(self) -> dict[str, Any]:
        """By the name in torch._C, without its `_accelerator_`."""
        return {
            "setAllocatorSettings": self._set_settings,
            "getStream": torch.cuda.current_stream,
            "setStream": torch.cuda.set_stream,
            "synchronizeDevice": self._of_allocator("synchronize"),
            "getMemoryInfo": _of_card(self._memory),
            "getDeviceCapability": not_covered("torch.accelerator.get_device_capability"),
        }

    def _of_allocator(self, name: str) -> Any:
        """A method of the allocator that the card has when it is called; the card may be named."""

        def ask(*index: int) -> object:
            for one in index:
                checked(one)
            return getattr(self._storages.allocator, name)()

        return ask

    def _stats(self) -> dict[str, Any]:
        """As C++ gives them: a dictionary for each part of the names."""
        nested: dict[str, Any] = {}
        for key, value in self._storages.allocator.stats().items():
            *path, leaf = key.split(".")
            inner = nested
            for part in path:
                inner = inner.setdefault(part, {})
            inner[leaf] = value
        return nested

    def _set_fraction(self, fraction: float, device: int) -> None:
        checked(device)
        self._storages.use()
        self._storages.allocator.set_memory_fraction(fraction)

    def _raw_alloc(self, size: int, stream: int) -> int:
        current, self._storages.stream = self._storages.stream, stream
        try:
            return self._storages.malloc(size)
        finally:
            self._storages.stream = current

    def _set_settings(self, text: str) -> None:
        self._storages.use()
        allocator = self._storages.allocator
        allocator.settings = Settings.parse(text, allocator.settings)


def _set_device(index: int) -> None:
    checked(index)


def _exchange_device(index: int) -> int:
    if index >= 0:
        checked(index)
    return 0


def _maybe_exchange_device(index: int) -> int:
    return _exchange_device(index)  # a function of its own: dynamo tells the two by it


def _of_card(answer: Callable[[], object]) -> Any:
    """`answer`, asked of a card by its index."""

    def of_card(index: int) -> object:
        checked(index)
        return answer()

    return of_card


def _always(answer: object) -> Any:
    return lambda *args: answer


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
        self.uuid = uuid.uuid5(uuid.NAMESPACE_URL, f"gpumem_magic:{model.key}")
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AbsentError(
            f"torch.cuda.get_device_properties().{name} is not covered by the virtual GPU"
        )

    def __repr__(self) -> str:
        shown = {
            "name": repr(self.name),
            "major": self.major,
            "minor": self.minor,
            "total_memory": f"{self.total_memory // MIB}MB",
            "multi_processor_count": self.multi_processor_count,
            "uuid": self.uuid,
            "pci_bus_id": self.pci_bus_id,
            "pci_device_id": self.pci_device_id,
            "pci_domain_id": self.pci_domain_id,
            "L2_cache_size": f"{self.L2_cache_size // MIB}MB",
        }
        return f"_CudaDeviceProperties({', '.join(f'{key}={shown[key]}' for key in shown)})"
