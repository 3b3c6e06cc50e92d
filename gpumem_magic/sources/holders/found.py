"""What leads to each block: the best way to it, and the names of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpumem_magic.sources.objects.ownership import Kind, Via
from gpumem_magic.values.inventory import HolderKind
from gpumem_magic.values.names import chained
from gpumem_magic.values.recording import Category

RANKS: Final = {kind: rank for rank, kind in enumerate(HolderKind)}
_NAMED_EXCEPTION: Final = RANKS[HolderKind.MODULE_STATE] - 0.5
_CATEGORIES: Final = {
    Kind.PARAMETER: Category.PARAMETER,
    Kind.BUFFER: Category.BUFFER,
    Kind.GRADIENT: Category.GRADIENT,
    Kind.STATE: Category.OPTIMIZER_STATE,
}
_UNNEEDED: Final = {
    HolderKind.OUTPUT_HISTORY: "only the output history keeps it",
    HolderKind.EXCEPTION: "only an error that is over keeps it, for %debug",
    HolderKind.CYCLE: "nothing leads to it any more: the garbage collector will free it",
}
_GRAPH: Final = ".grad_fn: "  # of the output history, say
_ALSO: Final = 6
_LONGEST: Final = 400


class Holder(NamedTuple):
    """What a walk has set out from. root: what begins the name ("model", "Out[5]"). label: what to
    call it among several. unneeded: why what it alone holds could go."""

    kind: HolderKind
    root: str
    label: str
    rank: float
    unneeded: str | None = None

    def inner(self, kind: HolderKind, label: str, unneeded: str | None = None) -> Holder:
        """The holder inside this one: what is reached through a hook of a variable is the hook's,
        but all that an exception leads to is the exception's."""
        if self.kind is not HolderKind.VARIABLE:
            return self
        rank = _NAMED_EXCEPTION if kind is HolderKind.EXCEPTION else RANKS[kind]
        return Holder(kind, self.root, label, rank, unneeded)


class Node(NamedTuple):
    """Something to look into. kind: what it makes of plain tensors inside (optimizers do)."""

    thing: Any
    path: str
    holder: Holder
    kind: Kind = Kind.NAMED
    via: Via = Via.NAME

    @classmethod
    def root(cls, kind: HolderKind, name: str, thing: Any, via: Via = Via.NAME) -> Node:
        """Where to set out: the holder is a name, a place or a piece of garbage."""
        holder = Holder(kind, name, name, RANKS[kind], _UNNEEDED.get(kind))
        return cls(thing, name, holder, via=via)


@dataclass(slots=True)
class Found:
    """One block that something leads to. kind: what its best owner says it is. shown: bytes of all
    tensors that lead to it."""

    holder: Holder
    path: str
    rank: tuple[float, int, int, int]
    kind: Kind
    shape: tuple[int, ...] | None
    dtype: str | None
    has_graph: bool
    others: dict[str, None] = field(default_factory=dict)
    shown: int = 0

    def category(self, told: Category | None) -> Category:
        """Its owner's word, else what earlier reports told, else what its holder makes of it."""
        if self.kind in _CATEGORIES:
            return _CATEGORIES[self.kind]
        if self.has_graph or self.holder.kind is HolderKind.GRAPH or _GRAPH in self.path:
            return Category.ACTIVATION
        if told is not None and told is not Category.TEMPORARY:
            return told
        return Category.OTHER


class Reached:
    """Collects the ways to blocks, of which the best one counts: by the rank of its holder, then as
    `Ownership` ranks owners, then the shortest for variables. Of equals the first counts."""

    def __init__(self) -> None:
        self.found: dict[int, Found] = {}
        self._dtypes: dict[Any, str] = {}

    def add(
        self, address: int, holder: Holder, path: str, kind: Kind, via: Via, tensor: Any = None
    ) -> None:
        """One way to the block at `address`. tensor: None for a storage without one."""
        named = holder.kind is HolderKind.VARIABLE
        rank = holder.rank, int(kind), int(via), len(path) if named else 0
        known = self.found.get(address)
        if known is None:
            shape, dtype, has_graph = self._described(tensor)
            known = Found(holder, path, rank, kind, shape, dtype, has_graph)
            known.shown = 0 if tensor is None else tensor.nbytes
            self.found[address] = known
            return
        known.shown += 0 if tensor is None else tensor.nbytes
        known.kind = min(known.kind, kind)
        label = holder.label
        if rank < known.rank:
            label = known.holder.label
            known.holder, known.path, known.rank = holder, path, rank
            known.shape, known.dtype, known.has_graph = self._described(tensor)
        tells = holder.kind is not HolderKind.CYCLE  # garbage is one heap
        if tells and label != known.holder.label and len(known.others) < _ALSO:
            known.others[label] = None
        known.others.pop(known.holder.label, None)

    def _described(self, tensor: Any) -> tuple[tuple[int, ...] | None, str | None, bool]:
        if tensor is None:
            return None, None, False
        dtype = tensor.dtype
        if (text := self._dtypes.get(dtype)) is None:
            text = self._dtypes[dtype] = str(dtype).removeprefix("torch.")
        return tuple(tensor.shape), text, tensor.grad_fn is not None


def cut(path: str) -> str:
    """Chains of thousands of objects would else make names as long."""
    path = path if len(path) <= _LONGEST else chained(path)
    return path if len(path) <= _LONGEST else path[: _LONGEST - 1] + "…"
