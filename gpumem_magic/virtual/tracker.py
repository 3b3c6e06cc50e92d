"""Sees every operator, in backward too: which results live on the device, what else it takes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.objects.ownership import sparse_parts
from gpumem_magic.virtual.accumulation import Accumulation
from gpumem_magic.virtual.devices import HOST
from gpumem_magic.virtual.headroom import Headroom
from gpumem_magic.virtual.kernels.sparse import take_scratch
from gpumem_magic.virtual.precision import lacks_dtype, run_wider
from gpumem_magic.virtual.random import DeviceRandom
from gpumem_magic.virtual.storages import Storages, pinned, storage_id
from gpumem_magic.virtual.traits import (
    Compute,
    Traits,
    as_called,
    composite_kernel,
    factory_bytes,
    mixed_devices,
    only_shapes,
    run_kernel,
    tensors_among,
)
from gpumem_magic.virtual.workspaces.scratch import ScratchMemory

_function_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE
_NO_HANDLER = torch._C._disabled_torch_dispatch_impl
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

_OF_PARTS = torch._C.DispatchKey.CompositeExplicitAutograd

_ONE_HOT = torch.nn.functional.one_hot
"""The zeros that it begins with are large."""


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def BACKWARD() -> None:  # noqa: N802 - a constant: only its identity is asked for
    """Stands for the function that is running while autograd calls operators and user code."""


class Tracker(TorchDispatchMode):
    """Operators with a device tensor among their inputs yield device tensors, as on a GPU.

    The kernels are the CPU's, so all values are real. `operator` is the one that runs now; caller:
    who called it, while no user code runs in it; records_graph: autograd records it. function: the
    one of torch's that user code has called, as far as the façade sees it. facade: the function
    mode that goes with it. replacements: of composite operators that are others on CUDA; they may
    return NotImplemented. compute: runs the kernels, or does without them. headroom: is asked
    before kernels run.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        storages: Storages,
        scratch: ScratchMemory,
        random: DeviceRandom,
        accumulation: Accumulation | None = None,
        compute: Compute = run_kernel,
        headroom: Headroom | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = storages
        self.operator: str | None = None
        self.caller: FrameType | None = None
        self.on_result: Callable[[str, list[torch.Tensor] | None, torch.Size], None] | None = None
        self.records_graph = False
        self._whole: tuple[str, list[torch.Tensor]] | None = None  # the composite that runs
        self.function: Callable[..., Any] | None = None
        self.replacements: dict[Any, Callable[..., Any]] = {}
        self.is_suspended = False
        self._makes_on_device = False
        self.facade: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        self._scratch = scratch
        self._random = random
        self._traits: dict[Any, Traits] = {}
        self._made_inside: set[int] = set()
        self._accumulation = accumulation or Accumulation()
        self._compute = compute
        self._headroom = headroom

    @property
    def is_dry(self) -> bool:
        """Whether nothing is computed."""
        return self._compute is not run_kernel

    def go_dry(self, scratch: ScratchMemory, compute: Compute) -> None:
        """From here on compute nothing; scratch: what operators take beside their results."""
        self._scratch, self._compute, self._headroom = scratch, compute, None
        self._traits.clear()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the handler and import its compiler at the first operator."""
        return False

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Operators inside leave no trace on the device."""
        outer, self.is_suspended = self.is_suspended, True
        try:
            yield
        finally:
            self.is_suspended = outer

    @contextlib.contextmanager
    def making_on_device(self, on_device: bool = True) -> Iterator[None]:
        """What C++ makes inside for the host is for the card, whose tensors it takes for those."""
        outer, self._makes_on_device = self._makes_on_device, on_device
        try:
            yield
        finally:
            self._makes_on_device = outer

    def random_of_device(
        self, state: torch.Tensor | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Within, random numbers are the device's; from `state` on, which then is not advanced."""
        return self._random.current() if state is None else self._random.repeated(state)

    def sibling(self) -> Tracker:
        """A tracker for another thread: same device, same knowledge of operators."""
        own = self._random, self._accumulation, self._compute, self._headroom
        other = Tracker(self.storages, self._scratch, *own)
        other.replacements, other._traits = self.replacements, self._traits
        return other

    def adopt(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Autograd makes zeros for outputs of a user's function that nobody used; on the device, as
        far as it goes, where the other gradients are."""
        given = [gradient for gradient in gradients if gradient is not None]
        if any(gradient in self.storages for gradient in given):
            for gradient in given:
                if self._made(gradient):
                    self.storages.place(gradient)

    def function_called(self, function: Callable[..., Any]) -> None:
        """User code has called `function`."""
        outer, self.function = self.function, function
        if self._made_inside and (outer is None or outer is BACKWARD):  # TorchScript, or autograd
            self._made_inside.clear()

    def function_returned(self, outer: Callable[..., Any] | None) -> None:
        """User code's call has returned to `outer`, the function that it was made in, if any."""
        self.function = outer
        if self._made_inside and (outer is None or outer is BACKWARD):
            self._made_inside.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            with self:  # flex_attention: the operators that it consists of
                return func.py_kernels[_OF_PARTS](*args, **kwargs)
        wraps = types and any(kind.__torch_dispatch__ is not _NO_HANDLER for kind in types)
        if (wraps or not types) and torch._C._get_dispatch_mode(_FAKE) is not None:
            return only_shapes(func, args, kwargs)
        if wraps:
            return NotImplemented  # a subclass that wraps tensors: its own operators are seen
        if self.is_suspended:
            if (device := kwargs.get("device")) is not None and device.type == "cuda":
                kwargs["device"] = HOST  # the default device: what is made here stays unseen
            return self._compute(func, args, kwargs)
        if self.function is None:
            return self._called_by_script(func, types, args, kwargs)
        traits = self._traits.get(func) or self._learn(func)
        if not _function_mode_is_on() or traits.is_custom:
            return self._see(func, traits, args, kwargs)
        with torch._C.DisableTorchFunction():  # in backward, where only user code needs the façade
            return self._see(func, traits, args, kwargs)

    def _see(self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if traits.is_composite or func in self.replacements:  # most only in inference mode
            whole, self._whole = self._whole, (traits.name, tensors_among(args, kwargs))
            try:
                with self:
                    made = (self.replacements.get(func) or composite_kernel(func))(*args, **kwargs)
            finally:
                self._whole = whole
            if made is not NotImplemented:
                return made
        if traits.is_view:
            return self._view(func(*args, **kwargs), args)
        if traits.accumulates:
            if (gradient := self._accumulation.taken_over(func, args)) is not None:
                return gradient
            in_place = self._accumulation.in_place(func, args, kwargs)
            if in_place is not None:
                func, traits = in_place, self._traits.get(in_place) or self._learn(in_place)
        on_device, sparse = self._on_device(traits, func, args, kwargs)
        to_gpu = on_device
        beside = traits.takes_device and self._accumulation.makes_indices(func, on_device)
        if traits.takes_device and (device := kwargs.get("device")) is not None:
            to_gpu = device.type == "cuda" or (on_device and device == HOST)
            to_gpu = to_gpu or self._makes_on_device or beside
            if to_gpu:
                kwargs["device"] = HOST
        if kwargs.get("pin_memory") and not to_gpu:
            return pinned(self._compute(func, args, {**kwargs, "pin_memory": False}))
        if to_gpu or on_device or traits.is_custom:
            outer, self.caller = self.caller, sys._getframe(2)
            try:
                return self._run(func, traits, args, kwargs, to_gpu, sparse)
            finally:
                self.caller = outer
        if traits.is_random:
            self._random.check(kwargs, on_device=False)
        out = self._compute(func, args, kwargs)
        if isinstance(out, torch.Tensor) and torch._C._has_storage(out):
            self._made_inside.add(storage_id(out))
        return out

    def _view(self, view: Any, args: tuple[Any, ...]) -> Any:
        """A view; of a sparse tensor it is a copy."""
        if _is_sparse(view) and args[0] in self.storages:
            self._place(view)
        return view

    def _called_by_script(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """TorchScript calls operators outside of any function; what is asked of tensors here must
        not be taken for the next function that user code calls."""
        self.function = func
        try:
            return self.__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.function = None

    def _learn(self, func: Any) -> Traits:
        return self._traits.setdefault(func, Traits(func, self._scratch))

    def _on_device(
        self, traits: Traits, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, tuple[torch.Tensor, ...]]:
        """Whether a device tensor is among the arguments, and those that are sparse. Raises as CUDA
        does for a mixture."""
        addresses = self.storages.addresses
        on_device, hosts = False, None
        sparse: tuple[torch.Tensor, ...] = ()
        operands = tensors_among(args, kwargs)
        if traits.indexes:
            operands = self._without_host_indices(operands, args[0], args[1])
        for tensor in operands:
            try:
                here = storage_id(tensor) in addresses
            except (NotImplementedError, RuntimeError):  # it has no storage of its own
                here = tensor in self.storages
                if here and _is_sparse(tensor):
                    sparse = (*sparse, tensor)
            if here:
                on_device = True
            elif not traits.may_mix or (traits.copies and tensor is args[0] and self._made(tensor)):
                hosts = [tensor] if hosts is None else [*hosts, tensor]
        if on_device and hosts:
            stand_ins = [self._made(tensor) for tensor in hosts]  # first: dim() is a call as well
            for tensor, is_stand_in in zip(hosts, stand_ins, strict=True):
                if tensor.dim() and not tensor.is_meta:
                    if not is_stand_in:
                        raise mixed_devices(traits, func, args, tensor)
                    if self.on_result is not None and self.function is _ONE_HOT:
                        self.on_result("one_hot", [], tensor.shape)
                    self.storages.place(tensor)
        return on_device, sparse

    def _without_host_indices(
        self, operands: list[torch.Tensor], indexed: torch.Tensor, indices: Any
    ) -> list[torch.Tensor]:
        """Indices may be on the host; raises as torch does where they alone are on the device."""
        given = [index for index in indices if index is not None]
        if indexed not in self.storages and not self._made(indexed):
            if any(index in self.storages for index in given):
                raise RuntimeError(
                    "indices should be either on cpu or on the same device as the indexed tensor "
                    "(cpu)"
                )
            return operands
        hosts = {id(index) for index in given if index not in self.storages}
        return [tensor for tensor in operands if id(tensor) not in hosts]

    def _made(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor stands for one of the device: torch's own code made it, and could
        not know of the device, inside the function that is running now."""
        return torch._C._has_storage(tensor) and storage_id(tensor) in self._made_inside

    def _run(
        self,
        func: Any,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        to_gpu: bool,
        sparse: tuple[torch.Tensor, ...],
    ) -> Any:
        """sparse: those among the arguments that are, on the device."""
        self.operator = traits.name
        operands = tensors_among(args, kwargs)
        parts_before = [sparse_parts(torch, tensor) for tensor in sparse]  # let go of after this
        grad = torch.is_grad_enabled() and not traits.fills
        self.records_graph = grad and any(t.requires_grad for t in operands)
        if traits.takes_device and to_gpu and (size := factory_bytes(traits, args, kwargs)):
            return self._make(func, traits, args, kwargs, size)
        if self._headroom is not None and to_gpu and traits.returns_new:
            large = self._headroom.without_room(traits, operands, func, args, kwargs)
            if large is not None:
                self._tell(traits, operands, large)
                self.storages.malloc(large.untyped_storage().nbytes())  # raises, as CUDA does
        if traits.is_random and to_gpu:
            self._random.check(kwargs, on_device=True)
            with self._random.current():
                out = self._compute(func, args, kwargs)
        elif traits.is_custom and not (self.is_dry and traits.is_told_by_shapes):
            self.caller = None
            with self.facade, self:  # its kernel is user code
                keys = _CUDA if self.is_dry and traits.has_code_for_card else _CPU
                out = func.redispatch(keys, *args, **kwargs)
            if getattr(type(out), "__torch_dispatch__", _NO_HANDLER) is not _NO_HANDLER:
                return out  # it wraps what the kernel made
        else:
            try:
                out = self._compute(func, args, kwargs)
            except RuntimeError as error:
                if not lacks_dtype(error, func, args):
                    raise
                out = run_wider(func, args, kwargs)
        if to_gpu and not _is_sparse(out):
            self._tell(traits, operands, out, parts_before)
        is_sparse = bool(sparse) or _is_sparse(out)
        if is_sparse:
            if traits.name == "_coalesce":
                out = out.clone()  # the CPU's has room for as many elements as there were
            if to_gpu:
                self._place([*sparse, out])
            parts_before.clear()
            take_scratch(self.storages, traits.name, args)
        elif traits.placing is not None and to_gpu:
            traits.placing(args, out)
        elif traits.returns_new and to_gpu:
            self._place(out if traits.on_device is None else traits.on_device(out))
        if traits.may_resize:
            self._follow_resizes(args, kwargs)
        if traits.scratch is not None and not is_sparse:
            traits.scratch(args, kwargs)
        self.operator = None
        return out

    def _tell(self, traits: Traits, given: list[torch.Tensor], out: Any, sparse: Any = ()) -> None:
        parts = [part for each in sparse for _, part in each]  # of those operands that are
        operands = [*parts, *(t for t in given if not _is_sparse(t))] if parts else given
        for one in out if type(out) is tuple else (out,):
            if self.on_result is not None and type(one) is torch.Tensor:
                self.on_result(*as_called(self._whole, traits.name, operands, one.shape))

    def _make(
        self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any], size: int
    ) -> Any:
        """A factory's result, its block first: the host spends nothing on what cannot fit."""
        if traits.is_random:
            self._random.check(kwargs, on_device=True)
        if self.on_result is not None:
            self.on_result(traits.name, None, torch.Size(args[0]))
        address = self.storages.malloc(size)
        try:
            if self._headroom is not None:
                self._headroom.check_host(size)
            with self._random.current() if traits.is_random else contextlib.nullcontext():
                out = self._compute(func, args, kwargs)
        except BaseException:
            self.storages.release(address)
            raise
        self.storages.place(out, address)
        self.operator = None
        return out

    def _place(self, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            self.storages.place(out)
        elif isinstance(out, (tuple, list)):
            for item in out:
                self._place(item)

    def _follow_resizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for tensor in tensors_among(args, kwargs):
            if tensor in self.storages:
                self.storages.resized(tensor)
