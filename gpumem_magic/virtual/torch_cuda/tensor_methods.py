"""The attributes of torch.Tensor that answer for the device a tensor is on, or move it there and
back."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import handle_torch_function

from gpumem_magic.virtual.devices import DEVICE, HOST, HOST_ASKED_FOR, checked, is_cuda
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages, is_pinned, pinned
from gpumem_magic.virtual.torch_cuda.tensor_types import dtype_on_device, dtype_on_host

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_HANDLER = torch._C._disabled_torch_function_impl
_WRAPS = "_gpumem_wraps_device_tensors"
"""An attribute of tensors without a storage that say they are on the card."""

_base: Any = torch._C.TensorBase
_to_dlpack: Any = torch.Tensor.__dlpack__
_from_dlpack: Any = torch.utils.dlpack.from_dlpack
_storage_base: Any = torch._C.StorageBase
_storage_class: Any = torch.storage._StorageBase


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
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
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
        patches.set(tensor, "is_cuda", property(self._is_cuda))
        patches.set(tensor, "is_cpu", property(self._is_cpu))
        patches.set(tensor, "get_device", self._method(self._get_device))
        wrap = staticmethod(_wrapping_with(torch.Tensor._make_wrapper_subclass))
        patches.set(tensor, "_make_wrapper_subclass", wrap)
        patches.set(tensor, "to", self._transfer_method(self._to))
        patches.set(tensor, "type_as", self._transfer_method(self._type_as))
        patches.set(tensor, "cuda", self._transfer_method(self._cuda))
        patches.set(tensor, "cpu", self._transfer_method(self._cpu))
        patches.set(tensor, "numpy", self._method(self._numpy))
        patches.set(tensor, "type", self._method(self._type))
        patches.set(tensor, "pin_memory", self._method(self._pin_memory))
        patches.set(tensor, "is_pinned", self._method(self._is_pinned))
        patches.set(tensor, "__dlpack__", self._method(self._dlpack))
        patches.set(torch, "from_dlpack", self._from_dlpack)
        patches.set(torch.utils.dlpack, "from_dlpack", self._from_dlpack)
        patches.set(tensor, "record_stream", self._method(self._record_stream))
        patches.set(torch._C._nn, "_parse_to", _parse_to_with(torch._C._nn._parse_to))
        storage = torch.UntypedStorage
        patches.set(storage, "device", property(self._storage_device))
        patches.set(storage, "to", self._method(self._storage_to))
        patches.set(storage, "clone", self._method(self._storage_clone))
        patches.set(storage, "copy_", self._method(_storage_copy))
        patches.set(storage, "resize_", self._method(self._storage_resize))

    @staticmethod
    def _method(bound: Any) -> Any:
        """A plain function, so that it binds to the tensor as a method would."""

        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return bound(tensor, *args, **kwargs)

        return method

    @staticmethod
    def _transfer_method(bound: Any) -> Any:
        """As `_method`, and subclasses of tensors have their say as with torch's own methods."""

        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if type(tensor) in _PLAIN:
                return bound(tensor, *args, **kwargs)
            if is_lazy(tensor):
                with torch._C.DisableTorchFunctionSubclass():
                    return bound(tensor, *args, **kwargs)
            handler = type(tensor).__torch_function__
            if handler is _NO_HANDLER or not torch._C._is_torch_function_enabled():
                return bound(tensor, *args, **kwargs)
            return handle_torch_function(method, (tensor,), tensor, *args, **kwargs)

        return method

    def _device(self, tensor: torch.Tensor) -> torch.device:
        if self._is_here(tensor):
            return DEVICE
        device: torch.device = _base.device.__get__(tensor)
        return device

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return tensor in self._storages or (type(tensor) not in _PLAIN and _WRAPS in vars(tensor))

    def _is_cuda(self, tensor: torch.Tensor) -> bool:
        return self._is_here(tensor) or bool(_base.is_cuda.__get__(tensor))

    def _is_cpu(self, tensor: torch.Tensor) -> bool:
        return bool(_base.is_cpu.__get__(tensor)) and not self._is_here(tensor)

    def _get_device(self, tensor: torch.Tensor) -> int:
        return 0 if self._is_here(tensor) else int(_base.get_device(tensor))

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

    def _type_as(self, tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._to(tensor, other)

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

    def _numpy(self, tensor: torch.Tensor, *, force: bool = False) -> Any:
        if force:
            tensor = self._cpu(tensor.detach()).resolve_conj().resolve_neg()
        if tensor in self._storages:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return _base.numpy(tensor)

    def _type(self, tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name: str = _base.type(tensor)
            if tensor in self._storages and not name.startswith("torch.cuda."):
                return name.replace("torch.", "torch.cuda.", 1)
            return name
        if (on_device := dtype_on_device(dtype)) is not None:
            return self._to(tensor, DEVICE, on_device, *args, **kwargs)
        if (on_host := dtype_on_host(dtype)) is not None:
            return self._to(tensor, HOST, on_host, *args, **kwargs)
        return _base.type(tensor, dtype, *args, **kwargs)

    def _pin_memory(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if tensor in self._storages:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        if self._is_pinned(tensor):
            return tensor
        return pinned(tensor.clone())

    def _is_pinned(self, tensor: torch.Tensor, device: Any = None) -> bool:
        return is_pinned(tensor)

    def _record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        if address := self._storages.locate(tensor):
            self._storages.allocator.record_stream(address, stream.stream_id)

    def _dlpack(self, tensor: torch.Tensor, **options: Any) -> Any:
        """Others than torch would take the memory for the host's."""
        if tensor in self._storages:
            raise BufferError("Unsupported device in DLTensor.")
        return _to_dlpack(tensor, **options)

    def _from_dlpack(self, ext_tensor: Any, **options: Any) -> torch.Tensor:
        if isinstance(ext_tensor, torch.Tensor) and ext_tensor in self._storages:
            return ext_tensor.detach()
        made: torch.Tensor = _from_dlpack(ext_tensor, **options)
        return made

    def _storage_device(self, storage: torch.UntypedStorage) -> torch.device:
        if storage._cdata in self._storages.addresses:
            return DEVICE
        device: torch.device = _storage_base.device.__get__(storage)
        return device

    def _storage_to(
        self, storage: torch.UntypedStorage, *, device: torch.device, non_blocking: bool = False
    ) -> torch.UntypedStorage:
        if not is_cuda(device):
            moved: torch.UntypedStorage = _storage_class.to(
                storage, device=device, non_blocking=non_blocking
            )
            return moved
        checked(device)
        if storage._cdata in self._storages.addresses:
            return storage
        return self._on_device(torch.UntypedStorage(storage.nbytes()).copy_(storage, non_blocking))

    def _storage_clone(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        copy = torch.UntypedStorage(storage.nbytes()).copy_(storage)
        return self._on_device(copy) if storage._cdata in self._storages.addresses else copy

    def _storage_resize(self, storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if storage._cdata in self._storages.addresses:
            self._storages.reallocate(storage, size)
        resized: torch.UntypedStorage = _storage_base.resize_(storage, size)
        return resized

    def _on_device(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        self._storages.place(_bytes_of(storage))
        return storage


def _storage_copy(
    storage: torch.UntypedStorage, source: torch.UntypedStorage, non_blocking: bool | None = None
) -> torch.UntypedStorage:
    """By tensors: a copy that no function of torch's has asked for says nothing of devices."""
    if storage.nbytes() != source.nbytes() or storage.nbytes() == 0:
        copied: torch.UntypedStorage = _storage_base.copy_(storage, source, non_blocking)
        return copied
    _bytes_of(storage).copy_(_bytes_of(source), non_blocking=bool(non_blocking))
    return storage


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=HOST).set_(storage)


def _wrapping_with(make: Any) -> Any:
    """A tensor around others, without a storage of its own: C++ has no card to put it on."""

    def make_wrapper(*args: Any, device: Any = None, **options: Any) -> Any:
        if not is_cuda(device):
            return (
                make(*args, **options) if device is None else make(*args, device=device, **options)
            )
        made = make(*args, device=HOST, **options)
        setattr(made, _WRAPS, True)
        return made

    return make_wrapper


def _parse_to_with(parse_to: Any) -> Any:
    """What nn.Module.to asks about its arguments: C++ knows neither the card's number nor which
    tensors are on it."""

    def parse(*args: Any, **kwargs: Any) -> Any:
        target = args[0] if args else kwargs.get("tensor")
        if isinstance(target, int):
            args = (checked(target), *args[1:])
        parsed = parse_to(*args, **kwargs)
        return (target.device, *parsed[1:]) if isinstance(target, torch.Tensor) else parsed

    return parse
