"""What a dry run cannot tell the memory of is refused by its name, or marked where it runs in
another way; never quietly something else."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from gpumem_magic.sources.virtual.dryrun.arrivals import Arrivals
from gpumem_magic.sources.virtual.patches import Patches

_ONE_PROCESS = "predict the code of one process without it"
_OWN_KERNELS = (
    "its kernels cannot be dry-run; predict the cell with PyTorch's own operators instead"
)
_OWN_MEMORY = "its memory does not come from PyTorch's allocator; leave that part out to predict"

_FUNCTIONS = (
    ("torch.distributed", "init_process_group", _ONE_PROCESS),
    ("torch.distributed", "init_device_mesh", _ONE_PROCESS),
    ("torch.distributed.distributed_c10d", "init_process_group", _ONE_PROCESS),
    ("torch.distributed.device_mesh", "init_device_mesh", _ONE_PROCESS),
    ("torch.distributed.fsdp", "fully_shard", _ONE_PROCESS),
    ("torch.multiprocessing.spawn", "spawn", _ONE_PROCESS),
    ("torch.multiprocessing", "spawn", _ONE_PROCESS),
    ("torch.utils.cpp_extension", "load", _OWN_KERNELS),
    ("torch.utils.cpp_extension", "load_inline", _OWN_KERNELS),
)
_CLASSES = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "__init__", _ONE_PROCESS),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "__init__", _ONE_PROCESS),
    ("triton.runtime.jit", "JITFunction", "run", _OWN_KERNELS),
    ("numba.cuda.dispatcher", "CUDADispatcher", "__getitem__", _OWN_MEMORY),
    ("numba.cuda.dispatcher", "CUDADispatcher", "__call__", _OWN_MEMORY),
)
_LIBRARIES = {
    "flash_attn": _OWN_KERNELS,
    "flash_attn.flash_attn_interface": _OWN_KERNELS,
    "flash_attn_interface": _OWN_KERNELS,
    "xformers.ops": _OWN_KERNELS,
    "xformers.ops.fmha": _OWN_KERNELS,
    "bitsandbytes.functional": _OWN_KERNELS,
    "bitsandbytes.nn.modules": _OWN_KERNELS,
    "bitsandbytes.optim.optimizer": _OWN_KERNELS,
    "apex.optimizers": _OWN_KERNELS,
    "apex.normalization": _OWN_KERNELS,
    "deepspeed": _ONE_PROCESS,
    "cupy": _OWN_MEMORY,
    "numba.cuda": _OWN_MEMORY,
    "jax": _OWN_MEMORY,
    "jax.numpy": _OWN_MEMORY,
}
"""Libraries of which every public function, and every new object, is refused."""

_HARMLESS = {
    "cupy": ("cuda", "is_available", "show_config", "get_array_module"),
    "numba.cuda": ("is_available", "detect", "jit", "declare_device"),
    "jax": ("jit", "grad", "vmap", "default_backend", "devices", "local_devices", "device_count"),
}


@contextmanager
def refusing(tell: Callable[[str], None]) -> Iterator[None]:
    """Within, NotImplementedError names what is not supported, and says what to do.

    tell: called with a sentence for what runs in another way than it would, once for each kind.
    """
    patches, told = Patches(), set[str]()

    def tell_once(text: str) -> None:
        if text not in told:
            told.add(text)
            tell(text)

    try:
        arrivals = Arrivals(patches)
        for module, name, advice in _FUNCTIONS:
            arrivals.expect(module, _refuser(patches, "", name, advice), name)
        for module, owner, method, advice in _CLASSES:
            arrivals.expect(module, _refuser(patches, owner, method, advice), owner)
        for module, advice in _LIBRARIES.items():
            if module.startswith("jax") and os.environ.get("JAX_PLATFORMS") == "cpu":
                continue
            arrivals.expect(module, _library_refuser(patches, advice))
        _run_compiled_eagerly(patches, arrivals, tell_once)
        yield
    finally:
        patches.restore()


def _refusal(name: str, advice: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not supported in a dry run: {advice}")

    return refuse


def _refuser(patches: Patches, owner: str, name: str, advice: str) -> Callable[[Any], None]:
    """What replaces `module.owner.name`, or `module.name`, on arrival of the module."""

    def refuse(module: Any) -> None:
        known_as = {"triton.runtime.jit": "a Triton kernel"}.get(
            module.__name__, f"{module.__name__}.{owner or name}"
        )
        patches.set(getattr(module, owner) if owner else module, name, _refusal(known_as, advice))

    return refuse


def _library_refuser(patches: Patches, advice: str) -> Callable[[Any], None]:
    def refuse(module: Any) -> None:
        harmless = _HARMLESS.get(module.__name__, ())
        for name, value in list(vars(module).items()):
            if name.startswith("_") or name in harmless or isinstance(value, types.ModuleType):
                continue
            refusal = _refusal(f"{module.__name__}.{name}", advice)
            own = str(getattr(value, "__module__", "")).startswith(module.__name__.split(".")[0])
            if not isinstance(value, type):
                if own and callable(value):
                    patches.set(module, name, refusal)
            elif own and "__init__" in vars(value) and not issubclass(value, BaseException):
                _set_if_possible(patches, value, refusal)

    return refuse


def _set_if_possible(patches: Patches, owner: type, refusal: Any) -> None:
    if owner.__flags__ & (1 << 9):  # a heap type: one that Python made, not C
        patches.set(owner, "__init__", refusal)


def _run_compiled_eagerly(
    patches: Patches, arrivals: Arrivals, tell: Callable[[str], None]
) -> None:
    """torch.compile's result is the function itself; what was compiled before runs as written."""
    marked = "torch.compile: runs eagerly in a dry run; compiled code may take less memory"

    def compile(model: Any = None, **options: Any) -> Any:
        tell(marked)
        return model if model is not None else lambda function: function

    def compile_module(module: Any, **options: Any) -> None:
        tell(marked)

    def eagerly(module: Any) -> None:
        def call(optimized: Any, *args: Any, **kwargs: Any) -> Any:
            tell(marked)
            return optimized._orig_mod(*args, **kwargs)

        def leave(callback: Any) -> Any:
            if callback not in (None, False):
                tell(marked)
            return None

        patches.set(module.OptimizedModule, "__call__", call)
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(module, name):
                patches.set(module, name, leave)

    patches.set(torch, "compile", compile)
    patches.set(torch.nn.Module, "compile", compile_module)
    arrivals.expect("torch._dynamo.eval_frame", eagerly, "OptimizedModule")
