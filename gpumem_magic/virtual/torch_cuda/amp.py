"""torch.autocast("cuda"): CUDA's operator lists and its weight cache, applied to device tensors
only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from gpumem_magic.virtual.patches import OperatorPatches, Patches
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.traits import composite_kernel

_KEY = "AutocastCPU"  # the key that C++ sees for device tensors, which are host tensors to it

_LOWER_PRECISION = frozenset(
    "_convolution _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell "
    "addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc "
    "conv_transpose1d conv_transpose2d conv_transpose3d convolution cudnn_convolution "
    "cudnn_convolution_transpose einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell "
    "matmul mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention".split()
)
"""AT_FORALL_LOWER_PRECISION_FP of ATen/autocast_mode.h, and CUDA's own additions to it."""

_RECURRENT = frozenset(
    f"aten::{layer}.{overload}"
    for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for overload in ("input", "data")
)
"""On CUDA these are cuDNN's layer, for which recurrent.py casts."""

_REPLACED = _RECURRENT | {"aten::scaled_dot_product_attention"}
"""Composite operators that are not to be taken apart: they have a kernel of the device's."""

_PROMOTE = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot "
    "scatter_add".split()
)
"""AT_FORALL_PROMOTE of ATen/autocast_mode.h."""

_FLOAT32_BY_DTYPE = frozenset(
    "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum".split()
)
"""AT_FORALL_FP32_SET_OPT_DTYPE: they are given dtype=float32 rather than a converted input."""

_NORM_WITH_DTYPE = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE: the overload that takes a dtype."""


class Autocast:
    """Autocast for the device.

    While the user has autocast on for "cuda" it is also on for "cpu" in C++, and the kernels that
    stand there then apply CUDA's lists to device tensors and leave host tensors to the user's own
    setting. Which operators have a list entry is asked of torch itself.
    """

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._host_enabled = False
        self._operators = OperatorPatches()
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._enabled: Callable[..., bool] = torch.is_autocast_enabled
        self._set_enabled: Callable[..., None] = torch.set_autocast_enabled

    def install(self, patches: Patches) -> None:
        """Follow the switches that torch.autocast turns."""
        enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
        clear_cache = torch.clear_autocast_cache
        self._enabled, self._set_enabled = enabled, set_enabled
        self._host_enabled = enabled("cpu")

        def set_autocast_enabled(*args: Any) -> None:
            device, on = args if len(args) == 2 else ("cuda", *args)
            set_enabled(device, on)
            if device == "cpu":
                self._host_enabled = on
            elif device == "cuda" and on:
                self._register()
            set_enabled("cpu", self._host_enabled or enabled("cuda"))

        def is_autocast_enabled(*args: Any) -> bool:
            return self._host_enabled if args == ("cpu",) else enabled(*args)

        def clear_autocast_cache() -> None:
            self._cache.clear()
            clear_cache()

        patches.set(torch, "set_autocast_enabled", set_autocast_enabled)
        patches.set(torch, "is_autocast_enabled", is_autocast_enabled)
        patches.set(torch, "clear_autocast_cache", clear_autocast_cache)
        if enabled("cuda"):  # it was left on
            self._register()
            set_enabled("cpu", True)

    def remove(self) -> None:
        """Take the kernels out again; autocast for the host stays as the user has set it."""
        self._cache.clear()
        self._operators.restore()
        if self._enabled("cuda"):
            self._set_enabled("cpu", self._host_enabled)

    def _register(self) -> None:
        if self._operators:
            return
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        for name in torch._C._dispatch_get_all_op_names():
            if not name.startswith("aten::"):
                continue
            on_host = has_kernel(name, _KEY)
            on_cuda = has_kernel(name, "AutocastCUDA") or name in _RECURRENT
            if on_host or on_cuda:
                short = name.removeprefix("aten::")
                self._operators.set(short, _KEY, self._kernel(short, on_host, on_cuda))

    def _kernel(self, name: str, on_host: bool, on_cuda: bool) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            f"aten::{name}", "CompositeImplicitAutograd"
        )
        is_apart = composite and f"aten::{name}" not in _REPLACED
        unlisted = composite_kernel(operator) if is_apart else _without_autocast(operator)
        listed_on_host = _original(operator) if on_host else None
        on_device = self._cast(operator, name, packet) if on_cuda else unlisted

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if self._on_device((*args, *kwargs.values())):
                return (on_device if self._enabled("cuda") else unlisted)(*args, **kwargs)
            if listed_on_host is not None and self._host_enabled:
                return listed_on_host(*args, **kwargs)
            return unlisted(*args, **kwargs)

        return kernel

    def _cast(self, operator: Any, name: str, packet: str) -> Callable[..., Any]:
        """The operator as CUDA's autocast runs it."""
        run = _without_autocast(operator)
        if f"aten::{name}" in _RECURRENT:
            return run
        names = [argument.name for argument in operator._schema.arguments]
        if name in _NORM_WITH_DTYPE:
            overload = getattr(torch.ops.aten.norm, _NORM_WITH_DTYPE[name])
            return functools.partial(_norm_in_float32, _without_autocast(overload), names)
        if packet in _FLOAT32_BY_DTYPE:
            return functools.partial(self._float32_by_dtype, run, names)
        if packet == "binary_cross_entropy":
            return _refuse_binary_cross_entropy
        return functools.partial(self._converted, run, packet)

    def _on_device(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(map(self._on_device, value))
        return isinstance(value, torch.Tensor) and value in self._storages

    def _converted(self, run: Callable[..., Any], packet: str, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.float32
        if packet in _LOWER_PRECISION:
            dtype = torch.get_autocast_dtype("cuda")
        elif packet in _PROMOTE:
            dtype = self._widest((*args, *kwargs.values()))
        # in the order of C++, whose compilers look at the last argument first
        last = {key: self._to(value, dtype) for key, value in reversed(kwargs.items())}
        first = [self._to(value, dtype) for value in reversed(args)]
        return run(*reversed(first), **last)

    def _to(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._to(item, dtype) for item in value)
        if not self._eligible(value) or value.dtype is dtype:
            return value
        cached = (
            dtype is torch.get_autocast_dtype("cuda")
            and value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
        )
        if not cached:
            return torch.ops.aten._to_copy(value, dtype=dtype)
        if id(value) not in self._cache:
            self._cache[id(value)] = value, torch.ops.aten._to_copy(value, dtype=dtype)
        return self._cache[id(value)][1]

    def _eligible(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.dtype is not torch.float64
            and value in self._storages
        )

    def _widest(self, arguments: tuple[Any, ...]) -> torch.dtype:
        values: list[Any] = []
        for value in arguments:
            values.extend(value if isinstance(value, (list, tuple)) else [value])
        dtypes = {value.dtype for value in values if self._eligible(value)}
        return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")

    def _float32_by_dtype(
        self, run: Callable[..., Any], names: list[str], *args: Any, **kwargs: Any
    ) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("dtype") is None and self._eligible(args[0]):
            given["dtype"] = torch.float32
        return run(**given)


def _without_autocast(operator: Any) -> Callable[..., Any]:
    """`operator`, below autocast."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*args, **kwargs)

    return run


def _original(operator: Any) -> Callable[..., Any] | None:
    """The kernel that torch has for host tensors; torch before 2.9 cannot hand it out."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        return None
    kernel = get_kernel(operator, _KEY)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.CPU
    )
    return lambda *args, **kwargs: kernel.call_boxed(keys, *args, **kwargs)


def _norm_in_float32(run: Callable[..., Any], names: list[str], *args: Any, **kwargs: Any) -> Any:
    given = {"p": None, **dict(zip(names, args, strict=False)), **kwargs}
    if "dim" in names:
        given.setdefault("keepdim", False)
    return run(**given, dtype=torch.float32)


def _refuse_binary_cross_entropy(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
        "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss on the "
        "values before the sigmoid instead: they are safe to autocast."
    )
