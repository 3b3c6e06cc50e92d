"""TorchScript, where C++ answers for tensors: of the host, which they are to it."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.virtual.devices import DEVICE, HOST, checked, is_cuda
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda.threads import Here

_DEVICE_FILE = "gpumem_magic_device"
"""An extra file of a saved script: the device of its tensors, which C++ writes as the host's."""

_COMPARED = frozenset(("prim::type", "prim::index", "aten::eq", "aten::ne", "aten::str"))
"""What a script does with a device to choose a branch; others only make tensors there."""

_TRACERS = ("_create_function_from_trace", "_create_method_from_trace")
_C: Any = torch._C
_TRACER = _C._dispatch_key_parse("Tracer")
_CONVOLUTION = torch.ops.aten.convolution.default
_RECORDED: Any = torch._convolution


class _Untraced(TorchDispatchMode):
    """Within, a trace has the operators that are called, and nothing of what modes do for them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        state = _C._get_tracing_state()
        if state is None:  # paused by torch, which has recorded this operator
            return func(*args, **(kwargs or {}))
        _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
        try:
            if func is _CONVOLUTION:  # its kernel calls the one that is recorded
                with self:
                    return _RECORDED(*args, False, False, True, True)
            _C._set_tracing_state(None)
            return func(*args, **(kwargs or {}))
        finally:
            _C._set_tracing_state(state)
            _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, True)


def _traced_alone(trace: Any) -> Any:
    def trace_alone(*args: Any, **kwargs: Any) -> Any:
        with _Untraced():  # type: ignore[no-untyped-call]
            return trace(*args, **kwargs)

    return trace_alone


class Scripts:
    """What scripts are told of devices, when they run, are saved and are loaded."""

    def __init__(self, storages: Storages, here: Here) -> None:
        self._storages = storages
        self._here = here

    def install(self, patches: Patches) -> None:
        """Replace the calls of functions and methods, tracing, both ways of saving, and loading."""
        for owner in (torch._C, torch._C.ScriptModule):
            for name in (*_TRACERS, *(f"{tracer}_with_dict" for tracer in _TRACERS)):
                if hasattr(owner, name):
                    patches.set(owner, name, _traced_alone(getattr(owner, name)))
        for script in (torch._C.ScriptFunction, torch._C.ScriptMethod):
            patches.set(script, "__call__", self._checked(script.__call__))
        module: Any = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]
        for name in ("save", "save_to_buffer"):
            patches.set(module, name, self._with_device(getattr(module, name)))
        patches.wrap(torch.jit, "load", _load)

    def _checked(self, call: Any) -> Any:
        """A call of a script that does not choose by the device; looked up once."""
        asked: weakref.WeakKeyDictionary[Any, tuple[str, bool]] = weakref.WeakKeyDictionary()

        def checked_call(script: Any, *args: Any, **kwargs: Any) -> Any:
            if self._storages.addresses:
                if script not in asked:
                    graph = script.inlined_graph
                    asked[script] = _read_device(graph), _makes_beside(graph)
                what, makes_beside = asked[script]
                if what:
                    raise NotImplementedError(
                        f"TorchScript that reads {what} is not covered by the virtual GPU, where "
                        "it would be told the host's: run it unscripted"
                    )
                given = (*args, *kwargs.values())
                if makes_beside and any(
                    isinstance(one, torch.Tensor) and one in self._storages for one in given
                ):
                    with self._here.tracker.making_on_device():
                        return call(script, *args, **kwargs)
            return call(script, *args, **kwargs)

        return checked_call

    def _with_device(self, save: Any) -> Any:
        def save_with_device(
            module: Any, *args: Any, _extra_files: Any = None, **options: Any
        ) -> Any:
            extra = dict(_extra_files or {})
            if any(tensor in self._storages for tensor in module.state_dict().values()):
                extra[_DEVICE_FILE] = str(DEVICE)
            return save(module, *args, _extra_files=extra, **options)

        return save_with_device


def _read_device(graph: Any) -> str:
    """What a script reads of a tensor's device to choose what it does; "" for nothing."""
    for kind in ("is_cuda", "is_cpu"):
        if graph.findNode(f"prim::{kind}") is not None:
            return kind
    devices = [node.output() for node in graph.findAllNodes("prim::device")]
    compared = (use.user.kind() in _COMPARED for device in devices for use in device.uses())
    return "device" if any(compared) else ""


def _makes_beside(graph: Any) -> bool:
    """Whether tensors are made on the devices of others alone, and not on one that is written."""
    constants = (node.output() for node in graph.findAllNodes("prim::Constant"))
    named = any(str(value.type()) == "Device" for value in constants)
    return graph.findNode("prim::device") is not None and not named


def _load(
    load: Any, f: Any, map_location: Any = None, _extra_files: Any = None, **options: Any
) -> Any:
    """torch.jit.load, which C++ can have no GPU for."""
    extra = {_DEVICE_FILE: "", **(_extra_files or {})}
    loaded = load(f, HOST if is_cuda(map_location) else map_location, extra, **options)
    saved_on = extra.pop(_DEVICE_FILE)
    if _extra_files is not None:
        _extra_files.update(extra)
    target = map_location or (saved_on if isinstance(saved_on, str) else saved_on.decode())
    return loaded.to(checked(target)) if is_cuda(target or None) else loaded
