"""torch.compile and torch.export: what generates code sees torch as it is without us, or is told
that it cannot be done for the device. And which graphs are compiled to the same code."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import overrides
from torch.utils import _python_dispatch, _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources import torch_release
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda.threads import Here

_MODES: tuple[tuple[Any, Callable[[], list[Any]]], ...] = (
    (overrides, overrides._get_current_function_mode_stack),
    (_python_dispatch, _python_dispatch._get_current_dispatch_mode_stack),
)
"""Both of torch's stacks of modes: where they are changed, and what is on them."""

_FLAGS = "_is_in_"
"""What names begin with by which torch up to 2.10 tells that it may not compile. Later it looks at
the stacks, and compiles anew where a flag has changed."""
_GOES_BY_FLAGS = torch_release() < (2, 11)


class Compilers:
    """Compiles while nothing is on the device; else code runs as it is written."""

    def __init__(self, storages: Storages, here: Here) -> None:
        self._storages = storages
        self._here = here
        self._patches = Patches()
        self._has_told = False
        self._has_seen = False

    def install(self, patches: Patches) -> None:
        """Replace torch.compile, which modules' `compile` calls too, torch.export.export and
        torch.jit.trace."""
        self._patches, self._has_told, self._has_seen = patches, False, False
        compile_by_torch, export_by_torch = torch.compile, torch.export.export

        def compile(model: Any = None, **options: Any) -> Any:
            if model is None:
                return functools.partial(compile, **options)
            if self._is_used():
                return self._as_written(model)
            compiled = self._alone(compile_by_torch, model, **options)
            if isinstance(model, torch.nn.Module):
                compiled.forward = self._either(compiled.forward, model)
                return compiled
            return functools.wraps(compiled)(self._either(compiled, model))

        @functools.wraps(export_by_torch)
        def export(mod: Any, *args: Any, **kwargs: Any) -> Any:
            held = mod.state_dict() if isinstance(mod, torch.nn.Module) else ()
            given = _pytree.tree_leaves((dict(held), args, kwargs))
            if any(isinstance(one, torch.Tensor) and one in self._storages for one in given):
                raise NotImplementedError(
                    "torch.export.export is not covered by the virtual GPU where the model or its "
                    "example is on the device: export it on the host, and move it then"
                )
            with self._as_without_us():
                return export_by_torch(mod, *args, **kwargs)

        patches.set(torch, "compile", compile)
        patches.set(torch.export, "export", export)
        for name in ("trace", "trace_module"):
            patches.wrap(torch.jit, name, self._alone)
        patches.wrap(torch, "__getattr__", self._imported)
        self.look()

    def _imported(self, get: Callable[[str], Any], name: str) -> Any:
        """What torch imports when it is asked for, its compiler among that."""
        found = get(name)
        self.look()
        return found

    def look(self) -> None:
        """Replace what code asks of torch's compiler itself, once it has been imported."""
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or self._has_seen or not hasattr(dynamo, "optimize"):
            return
        self._has_seen = True
        for name in ("explain", "export"):
            self._patches.wrap(dynamo, name, self._ready)
        self._patches.wrap(dynamo, "optimize", self._optimizing)

    def _ready(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `make` gives, which compiles when it is called."""
        made = self._alone(make, *args, **kwargs)
        return functools.partial(self._alone, made) if callable(made) else made

    def _optimizing(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._here.tracker.is_dry:  # where the plan for the card is followed
            return make(*args, **kwargs)
        compile_by_torch = self._alone(make, *args, **kwargs)
        return lambda model: self._either(self._alone(compile_by_torch, model), model)

    def _alone(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `run` gives; without us while nothing is on the device."""
        if self._is_used():
            return run(*args, **kwargs)
        with self._as_without_us():
            return run(*args, **kwargs)

    def _is_used(self) -> bool:
        """Whether code that runs now may meet the device. A dry run computes nothing, here too."""
        return bool(self._storages.addresses) or self._here.tracker.is_dry

    def _as_written(self, model: Any) -> Any:
        if not self._has_told:
            self._has_told = True
            warnings.warn("torch.compile runs eagerly on the virtual GPU", stacklevel=3)
        return model

    def _either(self, compiled: Callable[..., Any], written: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._is_used():
                return self._as_written(written)(*args, **kwargs)
            return self._alone(compiled, *args, **kwargs)

        return run

    @contextlib.contextmanager
    def _as_without_us(self) -> Iterator[None]:
        """Within, torch has none of our modes and patches; the user's own modes stay in place."""
        with self._patches.undone(), torch_alone(self._here.facade, self._here.tracker):
            yield


@contextlib.contextmanager
def torch_alone(*ours: Any) -> Iterator[None]:
    """Within, these modes are not on torch's stacks; others stay where they are."""
    before = [(module, stack()) for module, stack in _MODES]
    for module, modes in before:
        _replace(module, modes, [mode for mode in modes if mode not in ours])
    told = vars(_python_dispatch)
    names = [name for name in told if name.startswith(_FLAGS)] if _GOES_BY_FLAGS else []
    flags = {name: told[name] for name in names}
    if not _python_dispatch._get_current_dispatch_mode_stack():
        told.update(dict.fromkeys(flags, False))
    try:
        yield
    finally:
        told.update(flags)
        for (module, modes), (_, stack) in zip(before, _MODES, strict=True):
            _replace(module, stack(), modes)


def _replace(module: Any, modes: list[Any], others: list[Any]) -> None:
    """Put `others` on one of torch's stacks, on which `modes` are."""
    for _ in modes:
        module._pop_mode()
    for mode in others:
        module._push_mode(mode)


def key_of(graph: torch.fx.GraphModule, inputs: Any) -> Hashable:
    """The same for graphs of dynamo's that are compiled to the same code, as where an attribute
    that the code only asks for has changed; None if that cannot be told."""
    if any(node.op in ("get_attr", "call_module") for node in graph.graph.nodes):
        return None
    storages: dict[int, int] = {}
    given = tuple(_described(value, storages) for value in inputs)
    if None in given:
        return None
    casts = tuple(
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        for kind in ("cpu", "cuda")
    )
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return _steps(graph.graph), given, casts, modes


def _steps(graph: torch.fx.Graph) -> Hashable:
    """What a graph does, without its names: these say by which way dynamo came to an input."""
    numbers = {node: f"%{number}" for number, node in enumerate(graph.nodes)}
    return tuple(
        (
            node.op != "placeholder" and node.target,
            repr(torch.fx.node.map_arg((node.args, node.kwargs), numbers.__getitem__)),
        )
        for node in graph.nodes
    )


def _described(value: Any, storages: dict[int, int]) -> Hashable:
    """An input, with the number of its storage among all that were met; None: it says not enough,
    as one whose sizes are symbols."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    if any(type(size) is not int for size in sizes):
        return None
    number = storages.setdefault(value.untyped_storage()._cdata, len(storages))
    traits = value.requires_grad, value.is_leaf, value.is_inference(), value.device
    return type(value), value.dtype, sizes, traits, number


class _Mode(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def guard_with_modes() -> None:
    """Let guards hold where our modes are on: code is compiled without them."""
    from torch._dynamo import guards

    @functools.wraps(guards.GuardBuilder.TORCH_FUNCTION_STATE)
    def unguarded(builder: Any, guard: Any) -> None:
        """Ours are among the modes where compiled code is called, and not where it is made."""

    guard_code = guards.CheckFunctionManager.__init__

    def with_mode(manager: Any, *args: Any, **options: Any) -> None:
        """Guards compare keys of dispatch, among which modes have theirs, with the keys now."""
        with _Mode():  # type: ignore[no-untyped-call]
            guard_code(manager, *args, **options)

    guards.GuardBuilder.TORCH_FUNCTION_STATE = unguarded  # type: ignore[method-assign]
    guards.CheckFunctionManager.__init__ = with_mode  # type: ignore[method-assign, assignment]


def leave_on(facade: Any) -> None:
    """Have compiled code that changes modes, a part of a `with` among them, leave ours on: it was
    traced without, and puts the modes that it knows in the place of all."""
    from torch._dynamo import utils

    put = utils.set_torch_function_mode_stack

    def put_beside(stack: list[Any]) -> None:
        put([*(mode for mode in utils.get_torch_function_mode_stack() if mode is facade), *stack])

    utils.set_torch_function_mode_stack = put_beside


def guard_card() -> None:
    """Let C++ guard tensors of the card with the host's guard, which does nothing: where there is
    no card (or torch knows of none) it has no guard for them."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    name = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * 2).in_dll(library, name)  # by DeviceType: CPU, CUDA
    guards[1] = guards[0]


_BANDWIDTH = 1555
"""Of an A100's memory, in GB/s: of what a kernel reads and what it computes, a ratio is asked."""


def answer_compiler() -> None:
    """What torch's compiler asks from PyTorch 2.15 on: of earlier runs' profiles, of the driver."""
    for module, name, answer in (
        ("torch._dynamo.pgo", "get_cache_key", None),
        ("triton.testing", "get_dram_gbps", _BANDWIDTH),
    ):
        with contextlib.suppress(ImportError):
            setattr(importlib.import_module(module), name, lambda *asked, it=answer: it)
