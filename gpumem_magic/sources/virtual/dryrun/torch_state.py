"""What torch keeps for the whole process or thread: random numbers, modes, flags, global hooks."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import overrides
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch
from torch.utils.data._utils import worker

Restore = Callable[[], object]

_C: Any = torch._C
_FLAGS = (
    *("autograd_fallback_mode", "backcompat_broadcast_warn", "backcompat_keepdim_warn"),
    *("blas_preferred_backend", "linalg_preferred_backend", "rocm_fa_preferred_backend"),
    *("cpu_allow_fp16_reduced_precision_reduction", "cublas_allow_fp16_accumulation"),
    *("cublas_allow_bf16_reduced_precision_reduction", "cublas_allow_tf32"),
    *("cublas_allow_fp16_reduced_precision_reduction", "cudnn_allow_tf32", "cudnn_benchmark"),
    *("cudnn_depthwise_kernel", "cudnn_deterministic", "cudnn_enabled", "mkldnn_deterministic"),
    *("deterministic_fill_uninitialized_memory", "float32_matmul_precision"),
    *("graph_executor_optimize", "math_sdp_allow_fp16_bf16_reduction", "miopen_immediate"),
    *("mkldnn_enabled", "nnpack_enabled", "onednn_allow_tf32", "qengine", "sdp_priority_order"),
    *("sm_carveout_experimental", "warnAlways"),
)
"""Flags that torch._C has as a pair of functions, _get_NAME and _set_NAME."""

_PRECISIONS = tuple(
    (backend, op)
    for backend, ops in (("generic", ["all"]), ("cuda", []), ("mkldnn", []))
    for op in ops or ("all", "matmul", "conv", "rnn")
)
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn", "fa3", "overrideable")
_DEVICE_TYPES = ("cuda", "cpu")


def _keep_generators() -> Restore:
    """The host's generator, and those of the device once it is in use."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    states = [generator.get_state() for generator in generators]

    def restore() -> None:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

    return restore


def _keep_defaults() -> Restore:
    """Type and device of new tensors, threads, and how tensors are printed."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    device = getattr(_device_context(), "device_context", None)
    tensor_type = _C._get_default_device()
    printing: Any = torch._tensor_str.PRINT_OPTS
    options = dict(vars(printing))

    def restore() -> None:
        if _C._get_default_device() != tensor_type:
            name = "torch.FloatTensor" if tensor_type == "cpu" else "torch.cuda.FloatTensor"
            _C._set_default_tensor_type(name)
        torch.set_default_dtype(dtype)
        if getattr(_device_context(), "device_context", None) is not device:
            torch.set_default_device(None if device is None else device.device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        vars(printing).update(options)

    return restore


def _device_context() -> Any:
    return getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)


def _keep_modes() -> Restore:
    """Modes that the code left open are closed: gradients, inference, functions, dispatch."""
    gradients, anomaly = torch.is_grad_enabled(), torch.is_anomaly_enabled()
    check_nan = torch.is_anomaly_check_nan_enabled()
    inference = torch.is_inference_mode_enabled()
    functions = list(overrides._get_current_function_mode_stack())
    dispatch = list(_python_dispatch._get_current_dispatch_mode_stack())

    def restore() -> None:
        _close_above(functions, overrides._get_current_function_mode_stack, overrides)
        _close_above(dispatch, _python_dispatch._get_current_dispatch_mode_stack, _python_dispatch)
        if torch.is_inference_mode_enabled() and not inference:
            _leave_inference_modes()
        torch.set_grad_enabled(gradients)
        torch.set_anomaly_enabled(anomaly, check_nan)

    return restore


def _leave_inference_modes() -> None:
    """The mode lasts as long as who entered it; the last who did is found first."""
    entered = [x for x in gc.get_objects() if type(x) is torch.inference_mode and x.mode]
    for mode in reversed(entered):
        if torch.is_inference_mode_enabled() and hasattr(mode, "_inference_mode_context"):
            mode.__exit__(None, None, None)


def _close_above(before: list[Any], stack: Callable[[], list[Any]], module: Any) -> None:
    while len(stack()) > len(before) and stack()[: len(before)] == before:
        module._pop_mode()


def _keep_autocast() -> Restore:
    """Whether and to what it casts, how deep it is nested; its cache is emptied on both sides."""
    states = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in _DEVICE_TYPES
    ]
    caches, depth = torch.is_autocast_cache_enabled(), _autocast_depth()
    torch.clear_autocast_cache()

    def restore() -> None:
        for kind, enabled, dtype in states:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(caches)
        while _autocast_depth() > depth:
            torch.autocast_decrement_nesting()
        while _autocast_depth() < depth:
            torch.autocast_increment_nesting()
        torch.clear_autocast_cache()

    return restore


def _autocast_depth() -> int:
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def _keep_flags() -> Restore:
    """Determinism, precision and which library computes what."""
    deterministic = _determinism()
    before = {name: _read(f"_get_{name}") for name in _FLAGS}
    attention = {name: _read(f"_get_{name}_sdp_enabled") for name in _ATTENTION}
    precisions = {place: _read("_get_fp32_precision_getter", *place) for place in _PRECISIONS}
    einsum: Any = torch.backends.opt_einsum
    strategy = einsum.enabled, einsum.strategy
    limit = _read("_cuda_get_cudnn_benchmark_limit")

    def restore() -> None:
        if _determinism() != deterministic:  # to set it would import the compiler
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        for name, value in before.items():
            if value is not None and _read(f"_get_{name}") != value:
                getattr(_C, f"_set_{name}")(*(value if isinstance(value, tuple) else (value,)))
        for name, value in attention.items():
            if value is not None and _read(f"_get_{name}_sdp_enabled") != value:
                getattr(_C, f"_set_sdp_use_{name}")(value)
        for place, value in precisions.items():
            if value is not None and _read("_get_fp32_precision_getter", *place) != value:
                _C._set_fp32_precision_setter(*place, value)
        vars(einsum)["enabled"], vars(einsum)["strategy"] = strategy
        if limit is not None and _read("_cuda_get_cudnn_benchmark_limit") != limit:
            _C._cuda_set_cudnn_benchmark_limit(limit)

    return restore


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _read(name: str, *arguments: Any) -> Any:
    """torch._C's answer; None where it has none, or refuses it for a mixture of settings."""
    with warnings.catch_warnings(), contextlib.suppress(AttributeError, RuntimeError):
        warnings.simplefilter("ignore")
        return getattr(_C, name)(*arguments)
    return None


def _keep_hooks() -> Restore:
    """Hooks on all modules and optimizers, and what torch.load trusts."""
    places = list(_global_hooks())
    before = [(place, list(place.items())) for place in places]
    full = modules._global_is_full_backward_hook
    unpickler: Any = torch._weights_only_unpickler
    trusted = unpickler._marked_safe_globals_set
    trusted_before = set(trusted)
    packages: Any = torch.serialization._package_registry
    packages_before = list(packages)
    worker_info = worker._worker_info

    def restore() -> None:
        for place, content in before:
            place.clear()
            place.update(content)
        modules._global_is_full_backward_hook = full
        unpickler._marked_safe_globals_set = trusted
        trusted.clear()
        trusted.update(trusted_before)
        packages[:] = packages_before
        worker._worker_info = worker_info

    return restore


def _global_hooks() -> Iterator[dict[Any, Any]]:
    for module in (modules, optimizers):
        for name, value in vars(module).items():
            if name.startswith("_global_") and isinstance(value, dict):
                yield value


TORCH_KEEPERS: tuple[Callable[[], Restore], ...] = (
    *(_keep_generators, _keep_defaults, _keep_modes, _keep_autocast, _keep_flags, _keep_hooks),
)
