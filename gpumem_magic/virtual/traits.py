"""What the tracker needs to know of an operator, told from its schema once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from gpumem_magic.virtual.accumulation import Accumulation
from gpumem_magic.virtual.devices import HOST
from gpumem_magic.virtual.workspaces.scratch import ScratchMemory
from gpumem_magic.virtual.workspaces.table import Placing, Scratch, placing_of, scratch_of

Compute = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Does what an operator does, given it and its arguments."""


def run_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let torch run the operator's kernel."""
    return func(*args, **kwargs)


def tensors_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, those in lists included."""
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found


_HOST_OPERANDS_ALLOWED = frozenset(
    "copy_ _to_copy set_ _pin_memory _ctc_loss _ctc_loss_backward _cudnn_ctc_loss "
    "_pack_padded_sequence _pack_padded_sequence_backward _pad_packed_sequence "
    "tensor_split".split()
)
"""Operators that take host tensors beside device tensors on a GPU too: copies, lengths."""

_INDEXING = frozenset("index index_put index_put_ _index_put_impl_".split())
"""Operators whose second argument, a list of indices, may be on the host."""

_NO_KERNEL = frozenset({"_unsafe_view", "prim::layout", "prim::device"})
"""Operators that compute nothing, though their schema does not tell so."""

_TORCHS_OWN = frozenset(
    "aten prim prims quantized mkldnn mkl onednn _quantized sparse torchvision profiler inductor "
    "_caffe2 static_runtime".split()
)
"""Namespaces of operators written in C++: all others may have kernels in Python."""


_GROWING = (
    "_pdist",
    "_upsample",
    "constant_pad",
    "convolution",
    "im2col",
    "max_unpool",
    "repeat",
    "upsample",
)
"""What the names of operators begin with whose results can be far larger than what they are given,
by arguments that are no tensors."""

_TAKEN_APART = frozenset(
    "_euclidean_dist _trilinear allclose binary_cross_entropy_with_logits dist embedding".split()
)
"""Operators that torch's own code makes of others, on every device, below autograd."""

_RESULTS_ON_DEVICE: dict[str, Callable[[Any], Any]] = {
    "native_dropout": lambda results: results[::-1],
    "_pack_padded_sequence": lambda results: results[0],
}
"""The results that live on the device, in the order in which CUDA allocates them, where that is not
simply all of them in turn."""


_FILLS: Final = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like"}
    | {"new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"}
)
"""What takes of a tensor its shape alone: no graph leads through."""


class Traits:
    """One operator. scratch: what takes the memory that it needs besides its results,
    or None. placing: what does both in one, or None. has_code_for_card: what a custom
    operator runs on CUDA is Python. is_told_by_shapes: it is not, but its shapes are told."""

    __slots__ = (
        "accumulates",
        "copies",
        "fills",
        "grows",
        "has_code_for_card",
        "indexes",
        "is_composite",
        "is_custom",
        "is_random",
        "is_told_by_shapes",
        "is_view",
        "may_mix",
        "may_resize",
        "name",
        "on_device",
        "placing",
        "returns_new",
        "scratch",
        "takes_device",
    )

    def __init__(self, func: Any, scratch: ScratchMemory) -> None:
        schema, tags = func._schema, func.tags
        name: str = schema.name.removeprefix("aten::")
        self.name = name
        resizes = name.startswith("resize")  # torch calls it a view as well: the shape changes
        self.is_view = name in _NO_KERNEL or (
            (func.is_view or torch.Tag.inplace_view in tags) and not resizes
        )
        self.is_random = torch.Tag.nondeterministic_seeded in tags
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        self.is_composite = (
            name in _TAKEN_APART
            or (  # some have a kernel besides, which is what devices run
                func.namespace != "prim"
                and has_kernel(func.name(), "CompositeImplicitAutograd")
                and not has_kernel(func.name(), "CPU")
            )
        )
        self.accumulates = Accumulation.concerns(func)
        self.is_custom = func.namespace not in _TORCHS_OWN and not self.is_composite
        self.has_code_for_card = self.is_custom and _has_code_for_card(func)
        self.is_told_by_shapes = (
            self.is_custom and not self.has_code_for_card and has_kernel(func.name(), "Meta")
        )
        self.copies = name == "copy_"
        self.grows = name.startswith(_GROWING)
        self.indexes = name in _INDEXING
        self.on_device = _RESULTS_ON_DEVICE.get(name)
        self.may_mix = name in _HOST_OPERANDS_ALLOWED or self.is_custom
        self.takes_device = any(argument.name == "device" for argument in schema.arguments)
        self.fills = name in _FILLS
        self.returns_new = any(result.alias_info is None for result in schema.returns)
        self.may_resize = resizes or any(a.is_out for a in schema.arguments)
        self.scratch: Scratch | None = scratch_of(scratch, name)
        self.placing: Placing | None = placing_of(scratch, name)


_COMPOSITE = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeExplicitAutograd",
)
"""The keys of kernels that are made of other operators."""


def _has_code_for_card(operator: Any) -> bool:
    """Whether the kernel of a custom operator that CUDA runs, its own or the one for all devices,
    was registered from Python."""
    name = operator.name().partition("::")[2]
    keys = ("CUDA", "CompositeExplicitAutograd")
    return any(f"{operator.namespace}/{name}/{key}" in torch.library._impls for key in keys)


@functools.cache
def composite_kernel(operator: Any) -> Callable[..., Any]:
    """torch's own C++ code of a composite operator. `operator.decompose` may be Python that is
    written for tracing, and draws other numbers."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    key = next((key for key in _COMPOSITE if has_kernel(operator.name(), key)), _COMPOSITE[-1])
    return functools.partial(operator._op_dk, getattr(torch._C.DispatchKey, key))


def host_kernel(operator: Any) -> Callable[..., Any]:
    """torch's own C++ code for host tensors, whether the operator is composite or has a kernel."""
    keys = torch._C.DispatchKey
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    is_composite = has_kernel(operator.name(), "CompositeImplicitAutograd")
    return functools.partial(
        operator._op_dk, keys.CompositeImplicitAutograd if is_composite else keys.CPU
    )


_TOO_MANY = 1 << 63
"""Bytes that torch cannot count."""


def factory_bytes(traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes that a factory operator (`zeros(size, ...)`) will take; 0 where its arguments do not
    tell, where it places its result itself, or where no tensor has such a size, as the operator
    will say."""
    size = args[0] if args else None
    dtype = kwargs.get("dtype") or (None if traits.name == "full" else torch.get_default_dtype())
    if traits.placing or dtype is None or not isinstance(size, (list, torch.Size)):
        return 0
    numel = 1
    for n in size:
        if not isinstance(n, int) or n < 0:
            return 0
        numel *= n
    taken = numel * int(dtype.itemsize)
    return taken if taken < _TOO_MANY else 0


def mixed_devices(
    traits: Traits, func: Any, args: tuple[Any, ...], host: torch.Tensor
) -> RuntimeError:
    """What CUDA raises when `host` is among device tensors."""
    names = [a.name for a, v in zip(func._schema.arguments, args, strict=False) if v is host]
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
        f"cpu! (when checking argument for argument {names[0] if names else 'tensors'} "
        f"in method wrapper_CUDA_{traits.name})"
    )


def only_shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As within FakeTensorMode (in which DTensor asks for shapes), whose turn is after ours."""
    if getattr(kwargs.get("device"), "type", None) == "cuda":
        kwargs["device"] = HOST
    return func(*args, **kwargs)


def as_called(
    whole: tuple[str, list[torch.Tensor]] | None,
    name: str,
    operands: list[torch.Tensor],
    shape: torch.Size,
) -> tuple[str, list[torch.Tensor], torch.Size]:
    """An operator, its operands and the shape of its result, as the composite that it is a part of
    was called: an embedding looks up its indices as one flat row."""
    if whole is None or (whole[0], name) != ("embedding", "index_select"):
        return name, operands, shape
    return *whole, torch.Size((*whole[1][1].shape, *shape[1:]))
