"""The virtual GPU: a card of the catalog, simulated on the host; switching it on and off leaves no
trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import overrides
from torch.utils import _python_dispatch

from gpumem_magic.allocator.caching import CachingAllocator, SimulatedDriver
from gpumem_magic.allocator.settings import Settings
from gpumem_magic.sources.interrupts import Interrupts
from gpumem_magic.sources.modes import enter_mode, leave_mode
from gpumem_magic.virtual import devices
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.devices import DEVICE
from gpumem_magic.virtual.headroom import Headroom
from gpumem_magic.virtual.kernels.table import Kernels
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.random import DeviceRandom
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda import distributed, warning_places
from gpumem_magic.virtual.torch_cuda.amp import Autocast
from gpumem_magic.virtual.torch_cuda.compiled import Compilers
from gpumem_magic.virtual.torch_cuda.cuda_api import CudaApi
from gpumem_magic.virtual.torch_cuda.facade import Facade
from gpumem_magic.virtual.torch_cuda.memory_history import MemoryHistory
from gpumem_magic.virtual.torch_cuda.scripts import Scripts
from gpumem_magic.virtual.torch_cuda.tensor_methods import TensorMethods
from gpumem_magic.virtual.torch_cuda.tensor_types import TensorTypes
from gpumem_magic.virtual.torch_cuda.threads import Here, Threads
from gpumem_magic.virtual.tracker import Tracker
from gpumem_magic.virtual.traits import run_kernel
from gpumem_magic.virtual.workspaces.reductions import Processors
from gpumem_magic.virtual.workspaces.scratch import ScratchMemory


class Kernelless(Protocol):
    """Stands in for kernels: called as an operator with its arguments."""

    def install(self, patches: Patches, storages: Storages) -> None:
        """Replace what reads values of tensors."""

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator's results, or arguments that it has written to."""


class VirtualGPU:
    """One simulated card. `switch_on` makes torch answer for it; `enter` and `leave` bracket the
    code that may use it. `settings` are those of PYTORCH_CUDA_ALLOC_CONF, read from the environment
    by default and again when the card is first used; ValueError for settings that torch would
    refuse. allocator: a new one of the card's size by default. compute: stands in for the kernels,
    which by default are the CPU's.
    """

    def __init__(
        self,
        model: GPUModel,
        settings: Settings | None = None,
        allocator: CachingAllocator | None = None,
        compute: Kernelless | None = None,
    ) -> None:
        self.model = model
        self.allocator = allocator or new_allocator(model, settings)
        unused = settings is None and self.allocator.reserved == 0
        self.storages = Storages(self.allocator, reads_settings=unused)
        self.random = DeviceRandom()
        self.scratch = _scratch_memory(self.storages, model)
        self._compute = compute
        headroom = Headroom(self.storages, model.total) if compute is None else None
        self.tracker = Tracker(
            *(self.storages, self.scratch, self.random),
            compute=compute or run_kernel,
            headroom=headroom,
        )
        self._facade = Facade(self.tracker)
        self._here = Here(self.tracker)
        self._threads = Threads(self._here)
        self._patches = Patches()
        self._kernels = Kernels(self.storages, self._here, model, self.scratch)
        self._autocast = Autocast(self.storages)
        self._history = MemoryHistory(self.storages)
        self._compilers = Compilers(self.storages, self._here)
        self._interrupts = Interrupts()
        self.is_on = False

    @property
    def is_dry(self) -> bool:
        """Whether it computes nothing."""
        return self._compute is not None

    def become(
        self,
        model: GPUModel,
        allocator: CachingAllocator,
        moved: Mapping[int, int],
        compute: Kernelless,
    ) -> None:
        """Go on as another card that computes nothing; only in a process of its own.

        allocator: holds everything that is on this card; moved: where, by the address here. What
        users and graphs hold of this card (streams, generators, saved tensors) is of that one then.
        """
        self.storages.move(allocator, moved)
        self.allocator, self._compute = allocator, compute
        held = {key: moved[at] for key, at in self.scratch.held.items() if at in moved}
        if model.name == self.model.name:
            self.model = model
            self.tracker.go_dry(self.scratch, compute)
            compute.install(self._patches, self.storages)
        else:
            self.switch_off()
            self.model = model
            self.scratch = _scratch_memory(self.storages, model)
            self.tracker.go_dry(self.scratch, compute)
            self._kernels = Kernels(self.storages, self._here, model, self.scratch)
            self.switch_on()
        self.scratch.held.update(held)

    def switch_on(self) -> None:
        """Replace what user code calls; nothing is tracked before `enter`."""
        if self.is_on:
            return
        self.is_on = True
        try:
            _forget_answers()
            TensorMethods(self.storages).install(self._patches)
            TensorTypes(self.storages).install(self._patches)
            Scripts(self.storages, self._here).install(self._patches)
            CudaApi(self.model, self.storages, self.scratch, self.random).install(self._patches)
            self._history.install(self._patches)
            self._patches.set(torch, "Generator", self.random.generator_class())
            grouping = "_group_tensors_by_device_and_dtype"
            self._patches.wrap(torch._C, grouping, self._grouped)
            run_backward = self._threads.run_backward
            self._patches.wrap(torch.autograd, "_engine_run_backward", run_backward)
            node = torch.autograd.function.BackwardCFunction
            self._patches.set(node, "apply", self._threads.with_zeros_on_device(node.apply))
            self._threads.install(self._patches)
            warning_places.install(self._patches)
            distributed.install(self._patches, self._here)
            self._kernels.patch(self._patches)
            self._compilers.install(self._patches)
            if self._compute is not None:
                self._compute.install(self._patches, self.storages)
            self._autocast.install(self._patches)
            self._kernels.install()
        except BaseException:
            self.switch_off()
            raise

    def switch_off(self) -> tuple[str, ...]:
        """Restore torch as it was. Tensors that were on the card are host tensors from then on.

        Gives the names of what stays, since other code has replaced it in the meantime.
        """
        self.leave()
        self._threads.end()
        self._kernels.remove()
        self._autocast.remove()
        self._history.end()
        covered = self._patches.restore()
        _forget_answers()
        self.is_on = False
        return covered

    def enter(self) -> None:
        """Track this thread's operators from here on."""
        self._interrupts.install()
        self.storages.catch_up()
        if self.is_on:
            self._compilers.look()
        operators, functions = _python_dispatch, overrides
        enter_mode(self._facade, functions._get_current_function_mode_stack(), functions)
        self._facade.is_entered = True
        self._here.tracker, self._here.facade = self.tracker, self._facade
        enter_mode(self.tracker, operators._get_current_dispatch_mode_stack(), operators)

    def leave(self) -> None:
        """Stop tracking this thread, which may be one that a cell has started; modes that user code
        has left open above stay open."""
        tracker, facade = self._here.tracker, self._here.facade or self._facade
        facade.is_entered = False
        self._here.tracker, self._here.facade = self.tracker, None
        operators, functions = _python_dispatch, overrides
        leave_mode(tracker, operators._get_current_dispatch_mode_stack(), operators)
        leave_mode(facade, functions._get_current_function_mode_stack(), functions)
        self._interrupts.remove()

    def __enter__(self) -> VirtualGPU:
        self.switch_on()
        self.enter()
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()
        self.switch_off()

    def _grouped(self, group: Any, tensors: Any, with_indices: bool = False) -> Any:
        """torch groups tensors by the device that C++ sees; answer with the one that users see."""
        found = {}
        for (device, dtype), (lists, indices) in group(tensors, with_indices).items():
            first = next(tensor for tensor in lists[0] if tensor is not None)
            found[DEVICE if first in self.storages else device, dtype] = lists, indices
        return found


def new_allocator(model: GPUModel, settings: Settings | None = None) -> CachingAllocator:
    """An empty allocator of the card's size; settings: by default those of the environment."""
    driver = SimulatedDriver(model.total, context=model.context)
    settings = settings or Settings.from_environment()
    return CachingAllocator(driver, settings, oldest_first=devices.RELEASE >= (2, 12))


def _scratch_memory(storages: Storages, model: GPUModel) -> ScratchMemory:
    processors = Processors.of(model.multiprocessors, model.capability)
    return ScratchMemory(storages, processors, model.capability)


def _forget_answers() -> None:
    """torch remembers some answers about the device for good."""
    for module, name in (
        (torch.cuda, "_check_bf16_tensor_supported"),
        (getattr(torch, "accelerator", None), "get_device_capability"),  # from torch 2.6
    ):
        getattr(getattr(module, name, None), "cache_clear", lambda: None)()
