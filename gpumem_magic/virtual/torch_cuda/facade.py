"""The calls that reach torch's C++ code with a device before any operator is dispatched."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._device import _device_constructors

from gpumem_magic.sources.interrupts import Interrupts
from gpumem_magic.sources.objects.ownership import sparse_parts
from gpumem_magic.virtual.devices import DEVICE, HOST, HOST_ASKED_FOR, checked, is_cuda
from gpumem_magic.virtual.kernels.products import PRODUCTS, product
from gpumem_magic.virtual.tracker import Tracker

_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})
_SPARSE = frozenset(
    {
        torch.sparse_coo_tensor,
        torch.sparse_compressed_tensor,
        torch.sparse_csr_tensor,
        torch.sparse_csc_tensor,
        torch.sparse_bsr_tensor,
        torch.sparse_bsc_tensor,
    }
)
_RECURRENT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
_LIKE_SELF = frozenset({torch.Tensor.new_tensor, torch.Tensor.new})
_SET_ITEM = torch.Tensor.__setitem__
_TENSOR: Any = torch.Tensor
_TELLS = frozenset(
    {
        *(_TENSOR.data_ptr, _TENSOR.dim, _TENSOR.element_size, _TENSOR.is_contiguous),
        *(_TENSOR.numel, _TENSOR.size, _TENSOR.stride),
        *(_TENSOR.dtype.__get__, _TENSOR.is_leaf.__get__, _TENSOR.layout.__get__),
        *(_TENSOR.requires_grad.__get__, _TENSOR.shape.__get__),
    }
)
"""What is asked of a tensor most often, and reaches no operator."""


class Facade(TorchFunctionMode):
    """Translates devices, never kernels: it is off inside its own handler."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self._tracker = tracker
        tracker.facade = self
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
        if func in _TELLS:
            return func(*args, **kwargs)
        if func in _FROM_DATA:
            return self._make(func, args, kwargs)
        if func in _LIKE_SELF:
            return self._make_like(func, args, kwargs)
        if func in _SPARSE and is_cuda(kwargs.get("device", _device.CURRENT_DEVICE)):
            return self._make_sparse(func, args, kwargs)
        if func is torch.device and args and isinstance(args[0], int):
            return torch.device("cuda", args[0])
        if func in _RECURRENT and len(args) > 3:
            self._check_recurrent(args)
        if func is _SET_ITEM and isinstance(args[2], (bool, int, float, complex)):
            args = self._put(*args)
        if "device" in kwargs or _device.CURRENT_DEVICE is not None:
            kwargs = self._placed(func, kwargs)
        if kwargs.get("pin_memory") is True and func in _device_constructors():
            made: torch.Tensor = func(*args, **{**kwargs, "pin_memory": False})
            return made.pin_memory()
        outer = self._tracker.function
        try:
            self._tracker.function_called(func)
            if func in PRODUCTS:
                return product(func, self._storages, args, kwargs)
            return func(*args, **kwargs)
        finally:
            self._tracker.function_returned(outer)
            if (interrupts := Interrupts.standing) is not None and interrupts.held:
                interrupts.handle_held()

    def _placed(self, func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """`kwargs` with the device as the tracker understands it, the default one included."""
        device = kwargs.get("device")
        if device is None and func in _device_constructors():
            device = _device.CURRENT_DEVICE
        if is_cuda(device):
            checked(device)
            return {**kwargs, "device": DEVICE}
        if isinstance(func, torch._ops.OpOverload) and func._schema.name.endswith("_like"):
            return kwargs  # by a subclass, which hands on what C++ said of its own tensor
        if device is not None and torch.device(device) == HOST:
            return {**kwargs, "device": HOST_ASKED_FOR}
        return kwargs

    def _put(self, tensor: Any, index: Any, value: Any) -> tuple[Any, ...]:
        """Arguments by which C++ puts a number with indices of another device, as it does on CUDA;
        since 2.15 it fills where it takes the devices to be one."""
        indices = index if isinstance(index, tuple) else (index,)
        tensors = (one for one in indices if isinstance(one, torch.Tensor) and one.dim())
        on_device = tensor in self._storages
        if any((one in self._storages) != on_device for one in tensors):
            value = torch.tensor(value, dtype=tensor.dtype)
        return tensor, index, value

    def _check_recurrent(self, args: tuple[Any, ...]) -> None:
        """Raise what check_attributes in native/RNN.cpp does for a mixture of devices.

        args: input, hidden states, weights; of a packed sequence the batch sizes come second.
        """
        states, weights = args[2:4] if isinstance(args[3], (list, tuple)) else args[1:3]
        states = states if isinstance(states, (list, tuple)) else [states]
        device = args[0].device
        for kind, tensors in (("hidden", states), ("parameter", weights)):
            for tensor in tensors:
                if tensor.device != device:
                    raise RuntimeError(
                        f"Input and {kind} tensors are not at the same device, found input tensor "
                        f"at {device} and {kind} tensor at {tensor.device}"
                    )

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

    def _make_sparse(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """From indices and values, which go to the device first: the values before the indices."""
        checked(kwargs.get("device", DEVICE))
        named = {name: _moved(value) for name, value in reversed(kwargs.items())}
        parts = [_moved(value) for value in reversed(args)]
        made: torch.Tensor = func(*reversed(parts), **{**named, "device": HOST})
        for _, part in sorted(sparse_parts(torch, made), key=lambda each: "values" not in each[0]):
            self._storages.place(part)
        return made

    def _make_like(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """`tensor.new_tensor(data)`: on the tensor's device where none is named."""
        device = kwargs.get("device")
        on_device = is_cuda(device) or (device is None and args[0] in self._storages)
        made: torch.Tensor = func(*args, **{k: v for k, v in kwargs.items() if k != "device"})
        if on_device:
            self._storages.place(made)
        return made


def _moved(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value
