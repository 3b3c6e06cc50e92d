"""What a dry run cannot tell the memory of is refused by its name, or marked where it runs in
another way; never quietly something else."""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.telling import renamed

_ONE_PROCESS = "predict the code of one process without it"
_OWN_KERNELS = (
    "its kernels cannot be dry-run; predict the cell with PyTorch's own operators instead"
)
_OTHER_LAYOUT = "use padded tensors, or layout=torch.jagged"
_OWN_MEMORY = "its memory does not come from PyTorch's allocator; leave that part out to predict"

_JAGGED, _ATTENTION = "torch.nested._internal.ops", "jagged_scaled_dot_product_attention"
_FUNCTIONS = (
    ("torch.multiprocessing.spawn", "", "spawn", _ONE_PROCESS),
    ("torch.multiprocessing", "", "spawn", _ONE_PROCESS),
    ("torch.utils.cpp_extension", "", "load", _OWN_KERNELS),
    ("torch.utils.cpp_extension", "", "load_inline", _OWN_KERNELS),
    ("numba.cuda.dispatcher", "CUDADispatcher", "__getitem__", _OWN_MEMORY),
    ("numba.cuda.dispatcher", "CUDADispatcher", "__call__", _OWN_MEMORY),
)
"""By module, and class where it is a method."""

_LIBRARIES = {
    "flash_attn": "--assume flash_attn goes by the shapes of its results",
    "flash_attn.flash_attn_interface": "--assume flash_attn goes by the shapes of its results",
    "flash_attn_interface": _OWN_KERNELS,
    "xformers.ops": "--assume xformers goes by the shapes of its results",
    "xformers.ops.fmha": _OWN_KERNELS,
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


def refuse(tell: Callable[[str], None], namespace: dict[str, Any], arrivals: Arrivals) -> None:
    """From here on NotImplementedError names what is not supported, and says what to do.

    tell: called with a sentence for what runs in another way than it would, once for each kind.
    namespace: names in it that are bound to such a thing mean the refusal as well.
    """
    refusals = _Refusals(tell, arrivals)
    refusals.install()
    namespace.update(renamed(namespace, refusals.replacements))


class _Refusals:
    def __init__(self, tell: Callable[[str], None], arrivals: Arrivals) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self._arrivals = arrivals
        self.replacements: dict[int, tuple[Any, Any]] = {}

    def install(self) -> None:
        """Refuse what is loaded, and what will be."""
        arrivals = self._arrivals
        self._refuse_nested_on_device()
        arrivals.expect(_JAGGED, self._name_attention, _ATTENTION)
        for module, owner, name, advice in _FUNCTIONS:
            refuse = functools.partial(self._refuse, owner, name, advice)
            arrivals.expect(module, refuse, owner or name)
        for module, advice in _LIBRARIES.items():
            if not (module.startswith("jax") and os.environ.get("JAX_PLATFORMS") == "cpu"):
                arrivals.expect(module, functools.partial(self._refuse_library, advice))

    def _put(self, owner: Any, name: str, known_as: str, advice: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if self._arrivals.is_importing:  # a library's own first steps are no business of ours
                return original(*args, **kwargs)
            raise NotImplementedError(f"{known_as} is not supported in a dry run: {advice}")

        self._set(owner, name, refuse)

    def _set(self, owner: Any, name: str, replacement: Any) -> None:
        if isinstance(owner, types.ModuleType):
            original = getattr(owner, name)
            self.replacements[id(original)] = original, replacement
        setattr(owner, name, replacement)

    def _refuse_nested_on_device(self) -> None:
        for name in ("nested_tensor", "as_nested_tensor"):
            original = getattr(torch.nested, name)
            self._set(torch.nested, name, functools.partial(_nested, name, original))

    def _name_attention(self, module: Any) -> None:
        """Let torch not take our refusal of what it does there for one of its own."""
        original = getattr(module, _ATTENTION)

        def attend(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except NotImplementedError:
                raise RuntimeError(
                    "scaled_dot_product_attention of nested tensors is not supported in a dry run: "
                    "use padded tensors and a mask"
                ) from None

        setattr(module, _ATTENTION, attend)

    def _refuse(self, owner: str, name: str, advice: str, module: Any) -> None:
        """`module.owner.name`, or `module.name`."""
        known_as = f"{module.__name__}.{owner or name}"
        self._put(getattr(module, owner) if owner else module, name, known_as, advice)

    def _refuse_library(self, advice: str, module: Any) -> None:
        """Every public function of the module, and the making of every object."""
        package, harmless = module.__name__.partition(".")[0], _HARMLESS.get(module.__name__, ())
        for name, value in list(vars(module).items()):
            own = str(getattr(value, "__module__", "")).startswith(package)
            if name.startswith("_") or name in harmless or not own or not callable(value):
                continue
            known_as = f"{module.__name__}.{name}"
            if not isinstance(value, type):
                self._put(module, name, known_as, advice)
            elif "__init__" in vars(value) and not issubclass(value, BaseException):
                with contextlib.suppress(TypeError):  # a class of C
                    self._put(value, "__init__", known_as, advice)


def _nested(name: str, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Those of the old layout hold no storage that could be followed."""
    if options.get("layout") is torch.jagged:
        return original(*args, **options)
    known_as = f"torch.nested.{name} of layout torch.strided"
    raise NotImplementedError(f"{known_as} is not supported in a dry run: {_OTHER_LAYOUT}")
