"""Sees every operator, in backward too: decides which results live on the device and what else it allocates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.virtual.accumulation import Accumulation
from gpumem_magic.sources.virtual.random import DeviceRandom
from gpumem_magic.sources.virtual.storages import Storages, storage_id
from gpumem_magic.sources.virtual.scratch import Scratch, ScratchMemory

HOST = torch.device("cpu")
HOST_ASKED_FOR = torch.device("cpu", 0)
"""What the façade makes of "cpu" in user code. Without the index it comes from torch's C++ code, which
repeats the device of a tensor there, and the tensors of the virtual GPU are host tensors to it."""

_LAST_RESULT_FIRST = frozenset({"native_dropout"})
"""Operators whose CUDA kernels allocate their results from the last to the first."""

_HOST_OPERANDS_ALLOWED = frozenset(
    "copy_ _to_copy set_ _pin_memory index index_put index_put_ _index_put_impl_ _ctc_loss "
    "_ctc_loss_backward _cudnn_ctc_loss _pack_padded_sequence _pack_padded_sequence_backward "
    "_pad_packed_sequence tensor_split lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer "
    "mkldnn_rnn_layer_backward".split()
)
"""Operators that take host tensors beside device tensors on a real GPU too: copies, indices, lengths."""


def is_cuda(device: Any) -> bool:
    """Whether `device`, as users write it (None, "cuda:0", 0, torch.device), names a GPU."""
    if device is None:
        return False
    if isinstance(device, int):
        return not isinstance(device, bool) and device >= 0
    return (device if isinstance(device, torch.device) else torch.device(device)).type == "cuda"


class Traits:
    """What the tracker needs to know of one operator; computed once."""

    __slots__ = (
        "is_composite",
        "is_random",
        "is_view",
        "last_first",
        "may_mix",
        "may_resize",
        "name",
        "returns_new",
        "scratch",
    )

    def __init__(self, func: Any, scratch: ScratchMemory) -> None:
        self.name: str = func._schema.name.removeprefix("aten::")
        self.is_view = (
            func.is_view or torch.Tag.inplace_view in func.tags or self.name == "_unsafe_view"
        )
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
        self.last_first = self.name in _LAST_RESULT_FIRST
        self.may_mix = self.name in _HOST_OPERANDS_ALLOWED
        writes = [a for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        self.returns_new = any(r.alias_info is None for r in func._schema.returns)
        self.may_resize = any(a.is_out for a in writes) or self.name.startswith("resize")
        self.scratch: Scratch | None = scratch.of(self.name)


class Tracker(TorchDispatchMode):
    """Operators with a device tensor among their inputs yield device tensors, as on a GPU.

    The kernels are the CPU's, so all values are real. `operator` is the one that runs now.
    function: the one of torch's that user code has called, as far as the façade sees it.
    replacements: composite operators that are others on CUDA, by name.
    """

    def __init__(self, storages: Storages, scratch: ScratchMemory, random: DeviceRandom) -> None:
        super().__init__()
        self.storages = storages
        self.operator: str | None = None
        self.function: Callable[..., Any] | None = None
        self._made_inside: set[int] = set()
        self.replacements: dict[str, Callable[..., Any]] = {}
        self._scratch = scratch
        self._random = random
        self._traits: dict[Any, Traits] = {}
        self._suspended = 0
        self._accumulation = Accumulation()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the handler and import its compiler at the first operator."""
        return False

    @property
    def is_suspended(self) -> bool:
        """Whether operators leave no trace at the moment."""
        return self._suspended > 0

    def random_of_device(
        self, state: torch.Tensor | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Within, random numbers are the device's; from `state` on, which then is not advanced."""
        return self._random.current() if state is None else self._random.repeated(state)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Operators inside leave no trace on the device."""
        self._suspended += 1
        try:
            yield
        finally:
            self._suspended -= 1

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._suspended:
            return func(*args, **kwargs)
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = Traits(func, self._scratch)
        if traits.is_composite:  # met in inference mode only: elsewhere autograd has taken it apart
            with self:
                return self.replacements.get(traits.name, func.decompose)(*args, **kwargs)
        if traits.is_view:
            return func(*args, **kwargs)
        if func is torch.ops.aten.add.Tensor and self._accumulation.is_in_place(args, kwargs):
            return torch.ops.aten.add_.Tensor(*args)
        on_device, host = self._placement(args, kwargs)
        to_gpu = on_device
        device = kwargs.get("device")
        if device is not None:
            to_gpu = device.type == "cuda" or (on_device and device.index is None)
            kwargs = {**kwargs, "device": HOST} if device.type in ("cuda", "cpu") else kwargs
        if not (to_gpu or on_device):
            return self._on_host(func, traits, args, kwargs)
        if on_device and host is not None and not traits.may_mix:
            raise _mixed(traits.name, func, args, host)
        return self._run(func, traits, args, kwargs, to_gpu, on_device)

    def _on_host(
        self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        out = func(*args, **kwargs)
        if self.function is not None and isinstance(out, torch.Tensor):
            self._made_inside.add(storage_id(out))
        return out

    def function_returned(self, outer: Callable[..., Any] | None) -> None:
        """User code's call has returned to `outer`, the function that it was made in, if any."""
        self.function = outer
        if outer is None:
            self._made_inside.clear()

    def _adopt(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor stands for one of the device: torch's own code made it, and could
        not know of the device, inside the function that is running now."""
        if storage_id(tensor) not in self._made_inside:
            return False
        self.storages.place(tensor)
        return True

    def _run(
        self,
        func: Any,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        to_gpu: bool,
        on_device: bool,
    ) -> Any:
        self.operator = traits.name
        reserved = None
        if not on_device and (size := _factory_bytes(args, kwargs)):
            reserved = self.storages.malloc(
                size
            )  # before the host spends memory on what cannot fit
        try:
            if traits.is_random and to_gpu:
                with self._random.current():
                    out = func(*args, **kwargs)
            else:
                out = func(*args, **kwargs)
        except BaseException:
            if reserved:
                self.storages.release(reserved)
            raise
        if traits.returns_new and to_gpu:
            self._place(out[::-1] if traits.last_first else out, reserved)
        if traits.may_resize:
            self._follow_resizes(args, kwargs)
        if traits.scratch is not None:
            traits.scratch(args, kwargs)
        self.operator = None
        return out

    def _placement(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, torch.Tensor | None]:
        """Whether a device tensor is among the arguments, and a host tensor that may not be beside it."""
        addresses = self.storages.addresses
        on_device, hosts = False, []
        for tensor in _tensors(args, kwargs):
            try:
                if storage_id(tensor) in addresses:
                    on_device = True
                    continue
            except (NotImplementedError, RuntimeError):
                continue
            if tensor.dim() and tensor.device.type != "meta":
                hosts.append(tensor)
        if on_device and hosts:
            hosts = [tensor for tensor in hosts if not self._adopt(tensor)]
        return on_device, hosts[0] if hosts else None

    def _place(self, out: Any, reserved: int | None) -> None:
        if isinstance(out, torch.Tensor):
            if out.layout is not torch.strided:
                raise NotImplementedError(
                    f"{out.layout} tensors are not supported on the virtual GPU (made by {self.operator})"
                )
            self.storages.place(out, reserved)
        elif isinstance(out, (tuple, list)):
            for item in out:
                self._place(item, None)

    def _follow_resizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for tensor in _tensors(args, kwargs):
            if tensor in self.storages:
                self.storages.resized(tensor)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for values in (args, kwargs.values()):
        for value in values:
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple)):
                for item in value:
                    if isinstance(item, torch.Tensor):
                        yield item


def _factory_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes that a factory operator (`zeros(size, ...)`) will take; 0 where its size is not an argument."""
    size = args[0] if args and isinstance(args[0], (list, torch.Size)) else None
    if size is None or not all(isinstance(n, int) for n in size):
        return 0
    numel = 1
    for n in size:
        numel *= n
    return numel * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize


def _mixed(name: str, func: Any, args: tuple[Any, ...], host: torch.Tensor) -> RuntimeError:
    names = [a.name for a, v in zip(func._schema.arguments, args, strict=False) if v is host]
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
        f"cpu! (when checking argument for argument {names[0] if names else 'tensors'} "
        f"in method wrapper_CUDA_{name})"
    )
