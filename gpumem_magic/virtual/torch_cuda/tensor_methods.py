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
from gpumem_magic.virtual.torch_cuda.tensor_types import ON_DEVICE, ON_HOST, dtype_of

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_HANDLER = torch._C._disabled_torch_function_impl
_WRAPS = "_gpumem_wraps_device_tensors"
"""An attribute of tensors without a storage that say they are on the card."""

_PLACE_OF_DEVICE = 7
"""Among the arguments of `_make_wrapper_subclass`, where they have no names (nested tensors)."""

_base: Any = torch._C.TensorBase
_to_dlpack: Any = torch.Tensor.__dlpack__
_from_dlpack: Any = torch.utils.dlpack.from_dlpack
_storage_base: Any = torch._C.StorageBase
_BYTES = "_gpumem_bytes"
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
    ) -> Any:
        ctx.back = source.device, source.dtype
        return _copied(source, target, dtype, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.to(*ctx.back), None, None, None


def _copied(
    source: torch.Tensor, target: torch.device, dtype: torch.dtype, options: dict[str, Any]
) -> Any:
    return torch.ops.aten._to_copy(source, dtype=dtype, device=target, **options)


def _transfer(
    source: torch.Tensor, target: torch.device, dtype: torch.dtype, options: dict[str, Any]
) -> Any:
    if source.requires_grad and torch.is_grad_enabled():
        return _Transfer.apply(source, target, dtype, options)  # type: ignore[no-untyped-call]
    return _copied(source, target, dtype, options)


class TensorMethods:
    """The attributes of torch.Tensor that answer for the device a tensor is on, or change it."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def install(self, patches: Patches) -> None:
        """Replace them on torch.Tensor, for every thread and below every mode."""
        tensor = torch.Tensor
        for name in ("device", "is_cuda", "is_cpu"):
            patches.set(tensor, name, property(getattr(self, f"_{name}")))
        moves = {"to": self._to, "type_as": self._to, "cuda": self._cuda, "cpu": self._cpu}
        for name, move in moves.items():
            patches.set(tensor, name, self._transfer_method(move))
        for name in ("get_device", "numpy", "type", "pin_memory", "record_stream"):
            patches.set(tensor, name, self._method(getattr(self, f"_{name}")))
        patches.set(tensor, "is_pinned", lambda tensor, device=None: is_pinned(tensor))
        patches.set(tensor, "__dlpack__", self._method(self._dlpack))
        patches.wrap(tensor, "_make_wrapper_subclass", _make_wrapper)
        for module in (torch, torch.utils.dlpack):
            patches.set(module, "from_dlpack", self._from_dlpack)
        patches.wrap(torch._C._nn, "_parse_to", _parse_to)
        storage = torch.UntypedStorage
        patches.set(storage, "device", property(self._storage_device))
        patches.set(storage, "copy_", self._method(_storage_copy))
        for name, function in (
            ("to", self._storage_to),
            ("clone", self._storage_clone),
            ("resize_", self._storage_resize),
        ):
            patches.set(storage, name, self._method(function))

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

    def _device(self, tensor: torch.Tensor) -> Any:
        return DEVICE if self._is_here(tensor) else _base.device.__get__(tensor)

    def _is_here(self, tensor: torch.Tensor) -> bool:
        if (held := tensor in self._storages) or type(tensor) in _PLAIN:
            return held
        local = getattr(tensor, "_local_tensor", None)  # a DTensor, which is made by C++
        return _WRAPS in vars(tensor) or (local is not None and local in self._storages)

    def _is_cuda(self, tensor: torch.Tensor) -> bool:
        return self._is_here(tensor) or bool(_base.is_cuda.__get__(tensor))

    def _is_cpu(self, tensor: torch.Tensor) -> bool:
        return bool(_base.is_cpu.__get__(tensor)) and not self._is_here(tensor)

    def _get_device(self, tensor: torch.Tensor) -> int:
        return 0 if self._is_here(tensor) else int(_base.get_device(tensor))

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, torch.Tensor):
            rest = {k: v for k, v in kwargs.items() if k != "other"}
            return self._to(tensor, other.device, other.dtype, *args[1:], **rest)
        target = args[0] if args and isinstance(args[0], (str, int, torch.device)) else None
        target = kwargs.get("device") if target is None else target
        if target is None:
            return _base.to(tensor, *args, **kwargs)
        target = DEVICE if is_cuda(target) and checked(target) else torch.device(target)
        if target.type not in ("cuda", "cpu"):
            return _base.to(tensor, *args, **kwargs)
        args = args[1:] if args and isinstance(args[0], (str, int, torch.device)) else args
        copy = args[2] if len(args) > 2 else kwargs.get("copy", False)
        rest = {k: v for k, v in kwargs.items() if k not in ("device", "copy")}
        _, dtype, non_blocking, memory_format = torch._C._nn._parse_to(HOST, *args[:2], **rest)
        options = {"non_blocking": non_blocking, "memory_format": memory_format}
        dtype = dtype or tensor.dtype
        if target == tensor.device:
            return _base.to(tensor, dtype, copy=copy, **options)
        target = DEVICE if target.type == "cuda" else HOST_ASKED_FOR
        return _transfer(tensor, target, dtype, options)

    def _cuda(
        self,
        tensor: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Any:
        target = DEVICE if device is None else device
        return self._to(tensor, target, non_blocking=non_blocking, memory_format=memory_format)

    def _cpu(
        self, tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> Any:
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
        for place, device in ((ON_DEVICE, DEVICE), (ON_HOST, HOST)):
            if (known := dtype_of(dtype, place)) is not None:
                return self._to(tensor, device, known, *args, **kwargs)
        return _base.type(tensor, dtype, *args, **kwargs)

    def _pin_memory(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if tensor in self._storages:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        return tensor if is_pinned(tensor) else pinned(tensor.clone())

    def _record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        if address := self._storages.locate(tensor):
            self._storages.allocator.record_stream(address, stream.stream_id)

    def _dlpack(self, tensor: torch.Tensor, *stream: Any, **options: Any) -> Any:
        """Others than torch would take the memory for the host's."""
        if tensor in self._storages:
            raise BufferError("Unsupported device in DLTensor.")
        return _to_dlpack(tensor, *stream, **options)

    def _from_dlpack(self, ext_tensor: Any, **options: Any) -> Any:
        if isinstance(ext_tensor, torch.Tensor) and ext_tensor in self._storages:
            return ext_tensor.detach()
        return _from_dlpack(ext_tensor, **options)

    def _storage_device(self, storage: torch.UntypedStorage) -> Any:
        if storage._cdata in self._storages.addresses:
            return DEVICE
        return _storage_base.device.__get__(storage)

    def _storage_to(
        self, storage: torch.UntypedStorage, *, device: torch.device, non_blocking: bool = False
    ) -> Any:
        if not is_cuda(device):
            return _storage_class.to(storage, device=device, non_blocking=non_blocking)
        checked(device)
        if storage._cdata in self._storages.addresses:
            return storage
        return self._on_device(torch.UntypedStorage(storage.nbytes()).copy_(storage, non_blocking))

    def _storage_clone(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        copy = torch.UntypedStorage(storage.nbytes()).copy_(storage)
        return self._on_device(copy) if storage._cdata in self._storages.addresses else copy

    def _storage_resize(self, storage: torch.UntypedStorage, size: int) -> Any:
        if size >= 0 and storage._cdata in self._storages.addresses:
            self._storages.reallocate(storage, size)
            if not storage.resizable() and size <= _storage_base.nbytes(storage):
                return _said_to_have(size, storage)
        return _storage_base.resize_(storage, size)

    def _on_device(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        self._storages.place(_bytes_of(storage))
        return storage


def _said_to_have(size: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The storage of a dry run stays as large as it is: nothing else is in its memory. What tells
    its size is replaced here, as this process ends with the dry run."""
    kind: Any = torch.UntypedStorage
    vars(storage)[_BYTES] = size
    kind.nbytes = _bytes_said
    return storage


def _bytes_said(storage: torch.UntypedStorage) -> int:
    said: int | None = vars(storage).get(_BYTES)
    return _storage_base.nbytes(storage) if said is None else said


def _storage_copy(
    storage: torch.UntypedStorage, source: torch.UntypedStorage, non_blocking: bool | None = None
) -> Any:
    """By tensors: a copy that no function of torch's has asked for says nothing of devices."""
    if storage.nbytes() != source.nbytes() or storage.nbytes() == 0:
        return _storage_base.copy_(storage, source, non_blocking)
    _bytes_of(storage).copy_(_bytes_of(source), non_blocking=bool(non_blocking))
    return storage


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=HOST).set_(storage)


def _make_wrapper(make: Any, *args: Any, **options: Any) -> Any:
    """A tensor around others, without a storage of its own: C++ has no card to put it on."""
    given = [*args[_PLACE_OF_DEVICE:][:1], options.get("device")]
    if not any(map(is_cuda, given)):
        return make(*args, **options)
    if "device" in options:
        options["device"] = HOST
    else:
        args = (*args[:_PLACE_OF_DEVICE], HOST, *args[_PLACE_OF_DEVICE + 1 :])
    made = make(*args, **options)
    setattr(made, _WRAPS, True)
    return made


def _parse_to(parse_to: Any, *args: Any, **kwargs: Any) -> Any:
    """What nn.Module.to asks about its arguments: C++ knows neither the card's number nor which
    tensors are on it."""
    target = args[0] if args else kwargs.get("tensor")
    if isinstance(target, int):
        args = (checked(target), *args[1:])
    parsed = parse_to(*args, **kwargs)
    return (target.device, *parsed[1:]) if isinstance(target, torch.Tensor) else parsed
