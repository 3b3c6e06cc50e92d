"""Copies of tensors: one storage for each of the originals', with views, gradients and hooks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from gpumem_magic.sources.virtual.dryrun.container_copies import Handler
from gpumem_magic.sources.virtual.dryrun.graphs import GraphCopies
from gpumem_magic.sources.virtual.dryrun.paths import ATTRIBUTE, Path, Step, written

if TYPE_CHECKING:
    from gpumem_magic.sources.virtual.dryrun.copier import Copier

_base: Any = torch._C.TensorBase
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_OWN_DEEPCOPY: Final = ("torch.nn.parameter", "torch._tensor", "torch.nn.modules.lazy")


class CopiesOfStorages(Protocol):
    """Knows what a storage becomes in a dry run."""

    def copy_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The same copy for the same storage."""


class RefusedError(NotImplementedError):
    """Something on the device that a dry run cannot stand in for."""


class TensorCopies:
    """Makes tensors over copied storages; each tensor object has one copy."""

    def __init__(self, copier: Copier, storages: CopiesOfStorages) -> None:
        self._storages = storages
        self._copies: dict[int, torch.UntypedStorage] = {}
        self.graphs = GraphCopies(copier, self)

    def handler_of(self, kind: type) -> Handler:
        """How to copy tensors of this class."""
        if kind not in _PLAIN:
            if hasattr(kind, "__tensor_flatten__"):
                return _wrapping
            of_class: Any = kind
            own = getattr(of_class.__deepcopy__, "__module__", "")
            if not own.startswith("torch.") and not own.startswith("gpumem_magic."):
                return _as_its_class_does
        return _tensor

    def storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The copy of a storage; those of meta tensors have nothing but a size."""
        key = storage._cdata
        found = self._copies.get(key)
        if found is None:
            if storage.device.type == "meta":
                found = torch.UntypedStorage(storage.nbytes(), device="meta")
            else:
                found = self._storages.copy_of(storage)
            self._copies[key] = found
        return found

    def copied(self) -> dict[int, torch.UntypedStorage]:
        """All copies by the `_cdata` of their originals."""
        return self._copies

    def forget(self) -> None:
        """Let go of all copies."""
        self._copies = {}
        self.graphs.forget()

    def over_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A plain leaf of the tensor's geometry over the copy of its storage."""
        storage = self.storage(_base.untyped_storage(tensor))
        device = "meta" if _base.is_meta.__get__(tensor) else "cpu"
        made = torch.empty(0, dtype=_base.dtype.__get__(tensor), device=device)
        with torch.no_grad():
            made.set_(
                storage, _base.storage_offset(tensor), _base.size(tensor), _base.stride(tensor)
            )
            if tensor.is_conj():
                made = torch._conj(made)
            if tensor.is_neg():
                made = torch._neg_view(made)
        return made


def copies_of_storage(copier: Copier, storage: Any, path: Path) -> Any:
    """Storages that user code holds itself, the old typed ones included."""
    if isinstance(storage, torch.storage.TypedStorage):
        untyped = copier.tensors.storage(storage._untyped_storage)
        return torch.storage.TypedStorage(wrap_storage=untyped, dtype=storage.dtype, _internal=True)
    return copier.tensors.storage(storage)


def _tensor(copier: Copier, tensor: torch.Tensor, path: Path) -> torch.Tensor:
    if not _is_dense(tensor):
        return _with_extras(copier, tensor, _of_other_layout(tensor, path), path)
    if _base.grad_fn.__get__(tensor) is not None:
        return _with_extras(copier, tensor, copier.tensors.graphs.output(tensor, path), path)
    with torch.inference_mode() if tensor.is_inference() else contextlib.nullcontext():
        made = copier.tensors.over_copy(tensor)
        if type(tensor) is not torch.Tensor:
            made = torch.Tensor._make_subclass(type(tensor), made, tensor.requires_grad)
        elif tensor.requires_grad:
            made.requires_grad_(True)
    return _with_extras(copier, tensor, made, path)


def _is_dense(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor._is_zerotensor()
        and not tensor.is_nested
        and torch._C._has_storage(tensor)
    )


def _of_other_layout(tensor: torch.Tensor, path: Path) -> torch.Tensor:
    if _is_cuda(tensor):
        raise RefusedError(
            f"`{written(path)}` is a tensor of {tensor.layout} on the device; "
            "a dry run knows dense tensors only"
        )
    with torch.no_grad():
        made = tensor.detach().clone()
    return made.requires_grad_(tensor.requires_grad)


def _with_extras(copier: Copier, tensor: Any, made: Any, path: Path) -> torch.Tensor:
    """Gradient, attributes, hooks and names. `made` is known first: they may lead back to it."""
    copier.memo[id(tensor)] = made
    if _base.is_leaf.__get__(tensor) or _base.retains_grad.__get__(tensor):
        if not made.is_leaf:
            made.retain_grad()
        if (gradient := _base.grad.__get__(tensor)) is not None:
            _set_gradient(tensor, made, copier.copy(gradient, Step(path, ATTRIBUTE, "grad")))
    if held := getattr(tensor, "__dict__", None):
        for name, value in list(held.items()):
            made.__dict__[name] = copier.copy(value, Step(path, ATTRIBUTE, name))
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name, None)
        if hooks is not None:
            setattr(made, name, copier.copy(hooks, Step(path, ATTRIBUTE, name)))
            if name == "_backward_hooks" and made.grad_fn is not None:
                made.grad_fn._register_hook_dict(made)
    if any(names := getattr(tensor, "names", ())):
        made.names = names
    return made  # type: ignore[no-any-return]


def _set_gradient(tensor: Any, made: Any, gradient: torch.Tensor) -> None:
    if gradient.dtype != made.dtype and hasattr(tensor, "grad_dtype"):
        made.grad_dtype = tensor.grad_dtype
    made.grad = gradient


def _wrapping(copier: Copier, tensor: Any, path: Path) -> Any:
    """A subclass that consists of other tensors."""
    names, context = tensor.__tensor_flatten__()
    parts = {n: copier.copy(getattr(tensor, n), Step(path, ATTRIBUTE, n)) for n in names}
    size, stride = _base.size(tensor), _base.stride(tensor)
    return type(tensor).__tensor_unflatten__(parts, context, size, stride)


def _as_its_class_does(copier: Copier, tensor: Any, path: Path) -> Any:
    return tensor.__deepcopy__(copier.memo)


def _is_cuda(tensor: torch.Tensor) -> bool:
    return bool(_base.is_cuda.__get__(tensor))
