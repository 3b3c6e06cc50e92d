"""Who owns each storage: of several owners the best one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpumem_magic.sources.objects.contents import fields
from gpumem_magic.values.recording import Category

if TYPE_CHECKING:
    import torch

Locate = Callable[["torch.Tensor"], int | None]


class Owned(NamedTuple):
    """One storage on the device and its best owner.

    category: None for a tensor that merely has a name; its life tells what it is. name: what to
    type to reach it. shape and dtype ("float32") are the owner's, which may be a view.
    has_graph: a named tensor carries a `grad_fn`. (Thousands are made at a time: a NamedTuple.)
    """

    address: int
    category: Category | None
    name: str | None
    shape: tuple[int, ...]
    dtype: str
    has_graph: bool


class Kind(IntEnum):
    """What a storage is to its owner; the lower, the better the owner."""

    PARAMETER = 0
    BUFFER = 1
    GRADIENT = 2
    STATE = 3
    NAMED = 4


class Via(IntEnum):
    """How a tensor was reached; the lower, the better its name."""

    MODULE = 0
    NAME = 1
    OPTIMIZER = 2


_CATEGORIES: Final = (
    *(Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE, None),
)
_WAYS: Final = len(Via)


class Ownership:
    """Collects the owners of storages. Of two that are equally good the first one counts."""

    def __init__(self, torch: Any, locate: Locate) -> None:
        self._torch = torch
        self._locate = locate
        self._best: dict[int, tuple[int, str, Any]] = {}  # rank, name, tensor
        # By id; the parameter itself is kept, so that its id stays its own.
        self._parameters: dict[int, tuple[Via, str, Any]] = {}

    def name_of(self, parameter: object) -> str | None:
        """What a parameter that was met before is called."""
        known = self._parameters.get(id(parameter))
        return known[1] if known else None

    def parameter(self, tensor: Any, path: str, via: Via) -> None:
        """Add a parameter as its storage's owner, and its gradient."""
        known = self._parameters.get(id(tensor))
        if tensor is None or (known is not None and known[0] <= via):
            return
        self._parameters[id(tensor)] = via, path, tensor
        self.add(tensor, Kind.PARAMETER, path, via)
        if tensor.is_leaf:  # torch warns when others are asked
            self.add(tensor.grad, Kind.GRADIENT, f"{path}.grad", via)

    def named(self, tensor: Any, path: str, kind: Kind) -> None:
        """Add what a variable leads to. A leaf that requires gradients is a parameter."""
        if issubclass(type(tensor), self._torch.nn.Parameter) or (
            tensor.requires_grad and tensor.is_leaf
        ):
            via = Via.OPTIMIZER if kind is Kind.STATE else Via.NAME
            self.parameter(tensor, path, via)
            return
        if tensor.requires_grad and tensor.retains_grad:
            self.add(tensor.grad, Kind.GRADIENT, f"{path}.grad", Via.NAME)
        # a slice of a storage must not name it while the whole is there
        self.add(tensor, kind, path, Via.NAME if is_whole(tensor) else Via.OPTIMIZER)

    def add(self, tensor: Any, kind: Kind, name: str, via: Via) -> None:
        """Add `tensor` as the owner of its storage, or its parts if it has none of its own."""
        if tensor is None:
            return
        try:
            address = self._locate(tensor)
        except (RuntimeError, NotImplementedError):  # sparse, say
            address = None
        if address is None:
            for attribute, part in parts_of(self._torch, tensor):
                self.add(part, kind, name + attribute, via)
            return
        rank = kind * _WAYS + via
        best = self._best.get(address)
        if best is None or rank < best[0]:
            self._best[address] = rank, name, tensor

    def owned(self) -> list[Owned]:
        """The winners, in the order in which their storages were met."""
        dtypes: dict[Any, str] = {}
        found = []
        for address, (rank, name, tensor) in self._best.items():
            dtype = tensor.dtype
            if (text := dtypes.get(dtype)) is None:
                text = dtypes[dtype] = str(dtype).removeprefix("torch.")
            category = _CATEGORIES[rank // _WAYS]
            has_graph = category is None and tensor.grad_fn is not None
            shape = tuple(tensor.shape)
            found.append(Owned(address, category, name, shape, text, has_graph))
        return found


def is_whole(tensor: Any) -> bool:
    """Whether the tensor uses all of its storage."""
    try:
        held: int = tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return True
    return bool(tensor.numel() * tensor.element_size() >= held)


def parts_of(torch: Any, tensor: Any) -> Iterator[tuple[str, Any]]:
    """Tensors of which a sparse or wrapping tensor (DTensor, quantized, nested) consists."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        for name, part in list(fields(tensor).items()):
            if issubclass(type(part), torch.Tensor):
                yield f".{name}", part
    elif tensor.layout is not torch.strided:
        yield from sparse_parts(torch, tensor)


def sparse_parts(torch: Any, tensor: Any) -> list[tuple[str, Any]]:
    """The indices and values of a sparse tensor, with what is written after its name to have them,
    in the order in which a copy of it allocates them; none of other tensors."""
    names = _PARTS.get(str(tensor.layout))
    if names is None:
        return []
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        return [(f".{name}()", getattr(tensor, name)()) for name in names]


_BY_ROWS = ("values", "crow_indices", "col_indices")
_BY_COLUMNS = ("values", "ccol_indices", "row_indices")
_PARTS = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": _BY_ROWS,
    "torch.sparse_bsr": _BY_ROWS,
    "torch.sparse_csc": _BY_COLUMNS,
    "torch.sparse_bsc": _BY_COLUMNS,
}
