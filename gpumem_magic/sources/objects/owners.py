"""Who owns each storage on the device, and what its user calls it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from gpumem_magic.sources.cuda.recorder import no_collection
from gpumem_magic.sources.objects.contents import Contents, attribute, fields, is_leaf
from gpumem_magic.sources.objects.modules import (
    OPTIMIZERS_OWN,
    by_preference,
    of_groups,
    of_module,
    of_states,
)
from gpumem_magic.sources.objects.namespaces import is_shells_own
from gpumem_magic.sources.objects.ownership import Kind, Locate, Owned, Ownership, Via

__all__ = ["Owned", "scan", "scan_all"]

_DEEPEST: Final = 6
_NODES: Final = 20_000
_TENSORS: Final = 50_000
_LISTED: Final = 100_000  # of what containers and objects hold


class _Node(NamedTuple):
    """Something to look into. kind: what it makes of plain tensors inside (optimizers do)."""

    thing: Any
    path: str
    hops: int = 0
    kind: Kind = Kind.NAMED


def scan(names: Mapping[str, object], optimizers: Iterable[object], locate: Locate) -> list[Owned]:
    """The owner of every storage on the device that `names` or `optimizers` lead to, each once.

    names: variables by name. optimizers: all that are known, named or not. locate(tensor): the
    address of its storage, or None when that is not on the device; it is asked only with torch's
    function overrides off.

    The best owner wins: parameter, buffer, gradient, optimizer state, named tensor; then the name
    through a module before others; then the shortest path. A module that sits in a list of another
    named one is named there (`model.layers[3].weight`, not the loop variable `layer.weight`), and
    `self` names only what nothing else does, and the shell's output history (`Out[5]`) after it. A
    loss scaler's tensors are buffers: kept, saved with its state and never trained. Where an
    optimizer has no name, `<Adam>` stands for it.

    Modules and optimizers are read whole; all else six attributes deep, up to 20,000 objects and
    50,000 tensors. No property, `__getattr__`, `__eq__` or `__repr__` of the user's runs; nothing
    is kept. 1,000 parameters with gradients take some 8 ms, with Adam's states (5,000 storages) 14
    ms.
    """
    return scan_all(names, optimizers, locate).owned


class Found(NamedTuple):
    """What `scan` finds, how many objects and storages it came to, the class of each module by its
    path, and an error that left something out."""

    owned: list[Owned]
    objects: int
    modules: dict[str, type]
    fault: Exception | None = None


def scan_all(names: Mapping[str, object], optimizers: Iterable[object], locate: Locate) -> Found:
    """As `scan`, with what else it comes to know."""
    torch = sys.modules.get("torch")
    if torch is None:
        return Found([], 0, {})
    with no_collection(), torch._C.DisableTorchFunction():
        ownership = Ownership(torch, locate)
        search = _Search(torch, ownership)
        search.walk(names)
        search.read_optimizers(optimizers)
        owned = ownership.owned()
        return Found(owned, len(owned) + search.objects, search.modules, search.fault)


class _Search:
    """Goes through names and optimizers, and notes what they own."""

    def __init__(self, torch: Any, ownership: Ownership) -> None:
        self.modules: dict[str, type] = {}
        self.fault: Exception | None = None
        self._torch = torch
        self._ownership = ownership
        self._contents = Contents()
        self._optimizers: dict[int, tuple[str, Any]] = {}
        self._seen: dict[int, Any] = {}  # keeps what it has seen, so that ids stay valid
        # Plain functions: bound methods would be a cycle, and keep all this until a collection.
        self._visits: dict[int, _Visit] = {}
        self._tensors = 0
        self._left = _LISTED

    @property
    def objects(self) -> int:
        """How many were looked into."""
        return len(self._seen)

    def walk(self, names: Mapping[str, object]) -> None:
        """Breadth first, so that the shortest path comes first; weaker names after the others."""
        named = [(name, thing) for name, thing in names.items() if _counts(name, thing)]
        for rows in by_preference(self._torch, named):
            self._walk(_Node(thing, name) for name, thing in rows)
        self._walk(_outputs(names))

    def _walk(self, roots: Iterable[_Node]) -> None:
        waiting = deque(roots)
        while waiting:
            node = waiting.popleft()
            try:
                waiting.extend(self._visit(node))
            except RuntimeError:  # a container that changes: leave it out
                continue
            except Exception as error:  # a class that raises
                self.fault = error

    def _visit(self, node: _Node) -> Iterable[_Node]:
        kind = type(node.thing)
        visit = self._visits.get(id(kind))
        if visit is None:
            visit = self._visits[id(kind)] = self._visitor(kind)
        return visit(self, node)

    def _visitor(self, kind: type) -> _Visit:
        torch = self._torch
        for base, visit in (
            (torch.Tensor, _Search._tensor),
            (torch.nn.Module, _Search._module),
            (torch.optim.Optimizer, _Search._optimizer),
            (torch.optim.lr_scheduler.LRScheduler, _Search._nothing),
            (torch.optim.lr_scheduler.ReduceLROnPlateau, _Search._nothing),
            (torch.amp.GradScaler, _Search._scaler),
        ):
            if issubclass(kind, base):
                return visit
        return _Search._object

    def _first_time(self, node: _Node) -> bool:
        if id(node.thing) in self._seen:
            return False
        self._seen[id(node.thing)] = node.thing
        return True

    def _nothing(self, node: _Node) -> Iterable[_Node]:
        return ()

    def _object(self, node: _Node) -> Iterable[_Node]:
        if node.hops >= _DEEPEST or len(self._seen) >= _NODES:
            return ()
        if not self._first_time(node):
            return ()
        held = [*islice(self._contents.of(node.thing, node.path), self._left)]
        self._left -= len(held)
        return [_Node(thing, path, node.hops + 1, node.kind) for path, thing in held]

    def _scaler(self, node: _Node) -> Iterable[_Node]:
        return self._object(_Node(node.thing, node.path, node.hops, Kind.BUFFER))

    def _optimizer(self, node: _Node) -> Iterable[_Node]:
        if not self._first_time(node):
            return
        self._optimizers[id(node.thing)] = node.path, node.thing
        for name, thing in list(fields(node.thing).items()):
            if name not in OPTIMIZERS_OWN and not is_leaf(thing):
                path = attribute(node.path, name)
                yield _Node(thing, path, node.hops + 1, Kind.STATE)

    def _module(self, node: _Node) -> Iterable[_Node]:
        if not self._first_time(node):
            return
        self.modules[node.path] = type(node.thing)
        for path, thing, kind, via in of_module(self._torch, node.thing, node.path):
            if kind is Kind.PARAMETER:
                self._ownership.parameter(thing, path, via)
            elif kind is Kind.BUFFER:
                self._ownership.add(thing, kind, path, via)
            elif not is_leaf(thing):
                yield _Node(thing, path, 1)

    def _tensor(self, node: _Node) -> Iterable[_Node]:
        self._tensors += 1
        if self._tensors <= _TENSORS:
            self._ownership.named(node.thing, node.path, node.kind)
        return ()

    def read_optimizers(self, optimizers: Iterable[object]) -> None:
        """Note parameters that nothing names, then all states by their parameters' names."""
        for optimizer in optimizers:
            name = f"<{type(optimizer).__name__}>"
            self._walk([_Node(optimizer, name)])
        for path, optimizer in self._optimizers.values():
            for name, thing, kind in of_groups(path, fields(optimizer).get("param_groups")):
                if kind is Kind.PARAMETER:
                    self._ownership.parameter(thing, name, Via.OPTIMIZER)
                elif not is_leaf(thing):
                    self._walk([_Node(thing, name, 0, kind)])
        name_of = self._ownership.name_of
        for path, optimizer in self._optimizers.values():
            for name, thing in of_states(path, fields(optimizer).get("state"), name_of):
                if type(thing) is self._torch.Tensor:  # a short cut for almost all of them
                    self._ownership.add(thing, Kind.STATE, name, Via.NAME)
                elif not is_leaf(thing):
                    self._walk([_Node(thing, name, 0, Kind.STATE)])


_Visit = Callable[[_Search, _Node], Iterable[_Node]]


def _outputs(names: Mapping[str, object]) -> Iterator[_Node]:
    """What the shell keeps of displayed values: it names what nothing else does, not its insides,
    which may be as many as a model's."""
    history = names.get("_oh")
    if type(history) is dict:
        for number, thing in list(history.items()):
            if not is_leaf(thing):
                yield _Node(thing, f"Out[{number}]", _DEEPEST - 1)


def _counts(name: object, thing: object) -> bool:
    """Whether it is a name of the user's (IPython has its own) and may hold something."""
    return type(name) is str and not is_leaf(thing) and not is_shells_own(name)
