"""Who owns each storage on the device, and what its user calls it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpumem_magic.sources.cuda.recorder import no_collection
from gpumem_magic.sources.objects.contents import Contents, attribute, fields, is_leaf
from gpumem_magic.sources.objects.modules import OPTIMIZERS_OWN, by_preference, items, member
from gpumem_magic.sources.objects.namespaces import is_shells_own
from gpumem_magic.sources.objects.ownership import Kind, Locate, Owned, Ownership, Via

__all__ = ["Owned", "scan", "scan_all"]

_DEEPEST: Final = 6
_NODES: Final = 20_000
_TENSORS: Final = 50_000


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
    """What `scan` finds, how many objects and storages it came to, and the class of each module by
    its path."""

    owned: list[Owned]
    objects: int
    modules: dict[str, type]


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
        return Found(owned, len(owned) + search.objects, search.modules)


class _Search:
    """Goes through names and optimizers, and notes what they own."""

    def __init__(self, torch: Any, ownership: Ownership) -> None:
        self.modules: dict[str, type] = {}
        self._torch = torch
        self._ownership = ownership
        self._contents = Contents()
        self._bookkeeping = frozenset(fields(torch.nn.Module()))
        self._optimizers: dict[int, tuple[str, Any]] = {}
        self._seen: dict[int, Any] = {}  # keeps what it has seen, so that ids stay valid
        # Plain functions: bound methods would be a cycle, and keep all this until a collection.
        self._visits: dict[int, _Visit] = {}
        self._tensors = 0

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
            except Exception:  # a container that changes, a class that raises: leave it out
                continue

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
        return [
            _Node(thing, path, node.hops + 1, node.kind)
            for path, thing in self._contents.of(node.thing, node.path)
        ]

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
        held = fields(node.thing)
        for name, parameter in items(held.get("_parameters")):
            self._ownership.parameter(
                parameter,
                member(self._torch, node.thing, node.path, name, "_parameters"),
                Via.MODULE,
            )
        for name, buffer in items(held.get("_buffers")):
            path = member(self._torch, node.thing, node.path, name, "_buffers")
            self._ownership.add(buffer, Kind.BUFFER, path, Via.MODULE)
        for name, module in items(held.get("_modules")):
            yield _Node(module, member(self._torch, node.thing, node.path, name, "_modules"))
        for name, thing in list(held.items()):
            if name not in self._bookkeeping and not is_leaf(thing):
                yield _Node(thing, attribute(node.path, name), 1)

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
            self._read_groups(path, fields(optimizer).get("param_groups"))
        for path, optimizer in self._optimizers.values():
            self._read_states(path, fields(optimizer).get("state"))

    def _read_groups(self, path: str, groups: Any) -> None:
        for i, group in enumerate(groups or ()):
            for key, value in items(group):
                if key != "params":  # a learning rate may be a tensor
                    node = _Node(value, f"{path}.param_groups[{i}][{key!r}]", 0, Kind.STATE)
                    self._walk([] if is_leaf(value) else [node])
            for j, parameter in enumerate(group["params"]):
                name = f"{path}.param_groups[{i}]['params'][{j}]"
                self._ownership.parameter(parameter, name, Via.OPTIMIZER)

    def _read_states(self, path: str, states: Any) -> None:
        for i, (key, state) in enumerate(items(states)):
            name = self._ownership.name_of(key)
            if name is None and type(key) is str:
                name = repr(key)
            place = f"{path}.state[{name}]" if name else f"list({path}.state.values())[{i}]"
            for entry, value in items(state):
                if type(value) is self._torch.Tensor:  # a short cut for almost all of them
                    self._ownership.add(value, Kind.STATE, f"{place}[{entry!r}]", Via.NAME)
                elif not is_leaf(value):
                    self._walk([_Node(value, f"{place}[{entry!r}]", 0, Kind.STATE)])


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
