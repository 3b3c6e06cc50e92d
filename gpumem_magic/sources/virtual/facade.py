"""What user code meets: tensors that say they are on "cuda:0", and the calls that move them there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._device import _device_constructors

from gpumem_magic.sources.virtual.patches import Patches
from gpumem_magic.sources.virtual.storages import Storages, storage_id
from gpumem_magic.sources.virtual.tracker import HOST, HOST_ASKED_FOR, Tracker

DEVICE = torch.device("cuda", 0)

_base: Any = torch._C.TensorBase
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})
_LIKE_SELF = frozenset({torch.Tensor.new_tensor, torch.Tensor.new})


def is_cuda(device: Any) -> bool:
    """Whether `device`, as users write it (None, "cuda:0", 0, torch.device), names a GPU."""
    if device is None:
        return False
    if isinstance(device, int):
        return not isinstance(device, bool) and device >= 0
    return (device if isinstance(device, torch.device) else torch.device(device)).type == "cuda"


def checked(device: Any) -> torch.device:
    """`device` as torch.device; raises what CUDA does where the index is not that of the one card."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "cuda" and device.index not in (None, 0):
        raise RuntimeError(
            "CUDA error: invalid device ordinal\n"
            f"(the virtual GPU has one card, cuda:0; {device} was asked for)"
        )
    return device


class _Transfer(torch.autograd.Function):
    """A copy between host and device; its gradient takes the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        source: torch.Tensor,
        target: torch.device,
        dtype: torch.dtype,
        options: dict[str, Any],
    ) -> torch.Tensor:
        ctx.back = source.device, source.dtype
        return _copied(source, target, dtype, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient.to(*ctx.back), None, None, None


def _copied(
    source: torch.Tensor, target: torch.device, dtype: torch.dtype, options: dict[str, Any]
) -> torch.Tensor:
    copy: torch.Tensor = torch.ops.aten._to_copy(source, dtype=dtype, device=target, **options)
    return copy


def _transfer(
    source: torch.Tensor, target: torch.device, dtype: torch.dtype, options: dict[str, Any]
) -> torch.Tensor:
    if source.requires_grad and torch.is_grad_enabled():
        moved: torch.Tensor = _Transfer.apply(source, target, dtype, options)  # type: ignore[no-untyped-call]
        return moved
    return _copied(source, target, dtype, options)


class TensorMethods:
    """The attributes of torch.Tensor that answer for the device a tensor is on, or change it."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._pinned: set[int] = set()

    def install(self, patches: Patches) -> None:
        """Replace them on torch.Tensor, for every thread and below every mode."""
        tensor = torch.Tensor
        patches.set(tensor, "device", property(self._device))
        patches.set(tensor, "is_cuda", property(lambda t: t in self._storages))
        patches.set(tensor, "is_cpu", property(self._is_cpu))
        patches.set(tensor, "get_device", self._method(self._get_device))
        patches.set(tensor, "to", self._method(self._to))
        patches.set(tensor, "cuda", self._method(self._cuda))
        patches.set(tensor, "cpu", self._method(self._cpu))
        patches.set(tensor, "numpy", self._method(self._numpy))
        patches.set(tensor, "type", self._method(self._type))
        patches.set(tensor, "pin_memory", self._method(self._pin_memory))
        patches.set(tensor, "is_pinned", self._method(self._is_pinned))
        patches.set(tensor, "record_stream", self._method(self._record_stream))
        storage = torch.UntypedStorage
        patches.set(storage, "device", property(self._storage_device))
        patches.set(storage, "to", self._method(self._storage_to))
        patches.set(storage, "clone", self._method(self._storage_clone))

    @staticmethod
    def _method(bound: Any) -> Any:
        """A plain function, so that it binds to the tensor as a method would."""
        return lambda tensor, *args, **kwargs: bound(tensor, *args, **kwargs)

    def _device(self, tensor: torch.Tensor) -> torch.device:
        try:
            if storage_id(tensor) in self._storages.addresses:
                return DEVICE
        except (NotImplementedError, RuntimeError):
            pass
        device: torch.device = _base.device.__get__(tensor)
        return device

    def _is_cpu(self, tensor: torch.Tensor) -> bool:
        return bool(_base.is_cpu.__get__(tensor)) and tensor not in self._storages

    def _get_device(self, tensor: torch.Tensor) -> int:
        return 0 if tensor in self._storages else int(_base.get_device(tensor))

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, torch.Tensor):
            rest = {k: v for k, v in kwargs.items() if k != "other"}
            return self._to(tensor, other.device, other.dtype, *args[1:], **rest)
        target = args[0] if args and isinstance(args[0], (str, int, torch.device)) else None
        target = kwargs.get("device") if target is None else target
        if target is None:
            unmoved: torch.Tensor = _base.to(tensor, *args, **kwargs)
            return unmoved
        target = DEVICE if is_cuda(target) and checked(target) else torch.device(target)
        if target.type not in ("cuda", "cpu"):
            elsewhere: torch.Tensor = _base.to(tensor, *args, **kwargs)
            return elsewhere
        args = args[1:] if args and isinstance(args[0], (str, int, torch.device)) else args
        copy = args[2] if len(args) > 2 else kwargs.get("copy", False)
        rest = {k: v for k, v in kwargs.items() if k not in ("device", "copy")}
        _, dtype, non_blocking, memory_format = torch._C._nn._parse_to(HOST, *args[:2], **rest)
        options = {"non_blocking": non_blocking, "memory_format": memory_format}
        dtype = dtype or tensor.dtype
        if target == tensor.device:
            stayed: torch.Tensor = _base.to(tensor, dtype, copy=copy, **options)
            return stayed
        target = DEVICE if target.type == "cuda" else HOST_ASKED_FOR
        return _transfer(tensor, target, dtype, options)

    def _cuda(
        self,
        tensor: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        target = DEVICE if device is None else device
        return self._to(tensor, target, non_blocking=non_blocking, memory_format=memory_format)

    def _cpu(
        self, tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> torch.Tensor:
        return self._to(tensor, HOST, memory_format=memory_format)

    def _numpy(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor in self._storages:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return _base.numpy(tensor, *args, **kwargs)

    def _type(self, tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name: str = _base.type(tensor)
            if tensor in self._storages and not name.startswith("torch.cuda."):
                return name.replace("torch.", "torch.cuda.", 1)
            return name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            return self._cuda(tensor).type(dtype.replace(".cuda", "", 1), *args, **kwargs)
        return _base.type(tensor, dtype, *args, **kwargs)

    def _pin_memory(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if tensor in self._storages:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        if self._is_pinned(tensor):
            return tensor
        pinned = tensor.clone()
        pinned.untyped_storage()._gpumem_pinned = True  # type: ignore[attr-defined]
        return pinned

    def _is_pinned(self, tensor: torch.Tensor, device: Any = None) -> bool:
        return hasattr(tensor.untyped_storage(), "_gpumem_pinned")

    def _record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        if address := self._storages.locate(tensor):
            self._storages.allocator.record_stream(address, stream.stream_id)

    def _storage_device(self, storage: torch.UntypedStorage) -> torch.device:
        if storage._cdata in self._storages.addresses:
            return DEVICE
        device: torch.device = torch._C.StorageBase.device.__get__(storage)
        return device

    def _storage_to(
        self, storage: torch.UntypedStorage, *, device: torch.device, non_blocking: bool = False
    ) -> torch.UntypedStorage:
        if not is_cuda(device):
            return torch.storage._StorageBase.to(storage, device=device, non_blocking=non_blocking)  # type: ignore[return-value]
        checked(device)
        if storage._cdata in self._storages.addresses:
            return storage
        return self._on_device(torch.UntypedStorage(storage.nbytes()).copy_(storage, non_blocking))

    def _storage_clone(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        copy = torch.UntypedStorage(storage.nbytes()).copy_(storage)
        return self._on_device(copy) if storage._cdata in self._storages.addresses else copy

    def _on_device(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        self._storages.place(torch.empty(0, dtype=torch.uint8, device=HOST).set_(storage))
        return storage


class Facade(TorchFunctionMode):
    """The calls that reach torch's C++ code with a device before any operator is dispatched."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self._tracker = tracker
        self._storages = tracker.storages
        self.is_entered = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FROM_DATA:
            return self._make(func, args, kwargs)
        if func in _LIKE_SELF:
            return self._make_like(func, args, kwargs)
        if func is torch.device and args and isinstance(args[0], int):
            return torch.device("cuda", args[0])
        if "device" in kwargs or _device.CURRENT_DEVICE is not None:
            kwargs = self._placed(func, kwargs)
        if kwargs.get("pin_memory") is True and func in _device_constructors():
            made: torch.Tensor = func(*args, **{**kwargs, "pin_memory": False})
            return made.pin_memory()
        outer, self._tracker.function = self._tracker.function, func
        try:
            return func(*args, **kwargs)
        finally:
            self._tracker.function_returned(outer)

    def _placed(self, func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """`kwargs` with the device as the tracker understands it, the default one included."""
        device = kwargs.get("device")
        if device is None and func in _device_constructors():
            device = _device.CURRENT_DEVICE
        if is_cuda(device):
            checked(device)
            return {**kwargs, "device": DEVICE}
        if device is not None and torch.device(device) == HOST:
            return {**kwargs, "device": HOST_ASKED_FOR}
        return kwargs

    def also_in(self, run_backward: Callable[..., Any]) -> Callable[..., Any]:
        """`run_backward` with this mode on: hooks and recomputed forward passes need it, but torch
        reaches it from inside the handler of a mode, where that mode is off."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self.is_entered or self in overrides._get_current_function_mode_stack():
                return run_backward(*args, **kwargs)
            with self:
                return run_backward(*args, **kwargs)

        return run

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """`torch.tensor(data, device="cuda")` and its like: made on the host, then moved."""
        device = kwargs.get("device")
        if device is None:
            source = args[0] if args else None
            if isinstance(source, torch.Tensor) and source in self._storages:
                device = DEVICE
            elif _device.CURRENT_DEVICE is not None:
                device = _device.CURRENT_DEVICE
        if not is_cuda(device):
            made: torch.Tensor = func(*args, **kwargs)
            return made
        checked(device)
        made = func(*args, **{**kwargs, "device": HOST})
        if made in self._storages:
            return made
        if isinstance(args[0] if args else None, torch.Tensor) or func is torch.as_tensor:
            return made.to(DEVICE)
        self._storages.place(made)
        return made

    def _make_like(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """`tensor.new_tensor(data)`: on the tensor's device where none is named."""
        device = kwargs.get("device")
        on_device = is_cuda(device) or (device is None and args[0] in self._storages)
        made: torch.Tensor = func(*args, **{k: v for k, v in kwargs.items() if k != "device"})
        if on_device:
            self._storages.place(made)
        return made
