"""Classes of tensors that are called: torch.cuda.FloatTensor and its like, from before torch.device
existed, and subclasses of torch.Tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.devices import DEVICE
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages

_DTYPES = {
    name: getattr(torch, name).dtype
    for name in (
        f"{kind}Tensor"
        for kind in "BFloat16 Bool Byte Char Double Float Half Int Long Short".split()
    )
}
ON_DEVICE, ON_HOST = "torch.cuda.", "torch."
"""What the names of the classes begin with."""


class TensorTypes:
    """The classes torch.cuda.*Tensor and torch.cuda.sparse.*Tensor, and
    torch.set_default_tensor_type, which takes the former."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._default_is_device = False

    def install(self, patches: Patches) -> None:
        """Replace them in torch.cuda."""
        for name, dtype in _DTYPES.items():
            patches.set(torch.cuda, name, self._class(name, dtype))
            if hasattr(torch.sparse, name):
                patches.set(torch.cuda.sparse, name, _sparse_class(name, dtype))
        original = torch.set_default_tensor_type

        def set_default_tensor_type(t: Any) -> None:
            dtype = dtype_of(t, ON_DEVICE)
            if dtype is not None:
                torch.set_default_dtype(dtype)
                torch.set_default_device(DEVICE)
            else:
                original(t)
                if self._default_is_device:
                    torch.set_default_device(None)
            self._default_is_device = dtype is not None

        patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
        patches.set(torch.Tensor, "__new__", _new_tensor)

    def _class(self, name: str, dtype: torch.dtype) -> type:
        on_host: Any = getattr(torch, name)
        storages = self._storages

        def make(*args: Any, **kwargs: Any) -> Any:
            return on_host(*args, **kwargs).to(DEVICE)

        own = {"__module__": "torch.cuda", "dtype": dtype, "is_cuda": True}
        return _tensor_type(name, own, storages.__contains__, make)


def _sparse_class(name: str, dtype: torch.dtype) -> type:
    def make(*args: Any) -> torch.Tensor:
        known = args if any(isinstance(arg, torch.Tensor) for arg in args) else (args,)
        return torch.sparse_coo_tensor(*known, dtype=dtype, device=DEVICE, check_invariants=False)

    own = {"__module__": "torch.cuda.sparse", "dtype": dtype}
    return _tensor_type(name, own, lambda tensor: tensor.is_sparse and tensor.is_cuda, make)


def _tensor_type(
    name: str, own: dict[str, Any], fits: Callable[[torch.Tensor], bool], make: Callable[..., Any]
) -> type:
    class TensorType(type):
        def __instancecheck__(cls, instance: object) -> bool:
            if not isinstance(instance, torch.Tensor):
                return False
            return instance.dtype is own["dtype"] and fits(instance)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

    return TensorType(name, (), own)


def _new_tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
    """torch.Tensor.__new__, given a class first. The tensor that a mode hands back has a Python
    object already, and torch refuses to make it another's: only torch.Tensor itself may be made
    under one. It names no parameters: Dynamo compares them with those that it knows."""
    new: Callable[..., torch.Tensor] = torch._C.TensorBase.__new__
    if args[0] is torch.Tensor:
        return new(*args, **kwargs)
    with torch._C._DisableTorchDispatch():
        return new(*args, **kwargs)


def dtype_of(kind: Any, place: str) -> torch.dtype | None:
    """The element type that such a class there, or its name, stands for; None for others."""
    if isinstance(kind, type):
        kind = f"{kind.__module__}.{kind.__name__}"
    if not isinstance(kind, str) or not kind.startswith(place):
        return None
    return _DTYPES.get(kind.removeprefix(place))
