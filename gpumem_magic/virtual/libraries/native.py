"""Native code of libraries (bitsandbytes, Triton's kernels): its launches do nothing, as they write
to tensors that are there already. The Python around it allocates through torch, and is run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from gpumem_magic.isolation.arrivals import Arrivals

_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
)
"""Whose `run` begins with `kernel[grid](...)`."""

_TRITONS_DRIVER = "triton.backends.nvidia.driver", "CudaUtils"
"""What Triton compiles to speak to the driver, and where; the rest of its driver asks torch."""


def given_to(written: Callable[[torch.Tensor], None]) -> Callable[..., _Compiled]:
    """What stands for a kernel's method that launches it: all tensors may have been written."""

    def run(kernel: Any, *args: Any, **kwargs: Any) -> _Compiled:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                written(value)
        return _Compiled(lambda *given, **named: run(kernel, *given, **named))

    return run


class _Compiled:
    """What a launch of Triton gives: a kernel that is compiled, each of whose numbers is one."""

    n_regs = n_spills = 1

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self.metadata = SimpleNamespace(shared=1, num_warps=1, num_stages=1)

    def _init_handles(self) -> None:
        """Load it into the driver: there is nothing to load."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self._run


def launch_nothing(arrivals: Arrivals, written: Callable[[torch.Tensor], None]) -> None:
    """From here on launches only say which tensors they were given."""

    run = given_to(written)

    def replace(owner: str) -> Callable[[Any], None]:
        return lambda module: setattr(getattr(module, owner), "run", run)

    for module, owner in _LAUNCHERS:
        arrivals.expect(module, replace(owner), owner)
    module, owner = _TRITONS_DRIVER
    arrivals.expect(module, lambda driver: setattr(driver, owner, _Utilities), owner)


_TABLES = "str2optimizer"
"""What names of tables of the library's functions begin with."""


class NoLibrary:
    """Stands for a native library: every function of it does nothing, and finds no error."""

    def __getattr__(self, name: str) -> Any:
        def call(*args: object) -> int:
            return 0

        setattr(self, name, call)
        return call


class _Utilities(NoLibrary):
    def get_device_properties(self, device: int) -> dict[str, int]:
        card: Any = torch.cuda.get_device_properties(device)
        return {
            "multiprocessor_count": card.multi_processor_count,
            "max_shared_mem": card.shared_memory_per_block_optin,
            "max_num_regs": card.regs_per_multiprocessor,
            "warpSize": card.warp_size,
        }


class Bitsandbytes:
    """What stands in for the package's native parts. Its kernels for CUDA are Python that calls a
    native library: without one they ask for what they would ask for on the card, in each version.
    """

    def __init__(
        self, tell: Callable[[str], None], written: Callable[[torch.Tensor], None]
    ) -> None:
        self._tell = tell
        self._written = written
        self._has_told = False

    def stand_in(self, package: Any) -> None:
        """Put them in the place of those that are loaded."""
        library = NoLibrary()
        self._replace("lib", library)
        with suppress(ImportError):  # versions before 0.46 have no kernels by device
            importlib.import_module("bitsandbytes.backends.cuda.ops")
            self._replace("lib", library)
        for module in _modules():
            for name, table in vars(module).items():
                if name.startswith(_TABLES):
                    _empty(table, library)
        self._replace("get_paged", self._get_paged)
        self._replace("prefetch_tensor", lambda tensor, to_cpu=False: None)

    def _replace(self, name: str, value: Any) -> None:
        for module in _modules():
            if name in vars(module):
                setattr(module, name, value)

    def _get_paged(
        self, *shape: int, dtype: torch.dtype = torch.float32, device: Any = None
    ) -> torch.Tensor:
        """A tensor in managed memory, which torch's allocator knows nothing of."""
        made = torch.zeros(shape, dtype=dtype, device="cpu")
        self._written(made)
        made.is_paged = True  # type: ignore[attr-defined]
        made.page_deviceid = 0  # type: ignore[attr-defined]
        if not self._has_told:
            self._has_told = True
            self._tell(
                "bitsandbytes: states of paged optimizers lie in managed memory, outside of "
                "PyTorch's allocator, and move to the host where the card is full; they are not "
                "in the figures."
            )
        return made


def _empty(table: dict[str, Any], library: NoLibrary) -> None:
    """Put functions that do nothing in the place of those in a table, alone or in tuples."""
    for key, value in table.items():
        several = isinstance(value, (tuple, list))
        table[key] = [library.nothing] * len(value) if several else library.nothing


def _modules() -> list[ModuleType]:
    found = list(sys.modules.items())
    return [module for name, module in found if name.partition(".")[0] == "bitsandbytes"]
