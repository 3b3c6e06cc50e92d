"""Goes from names and other places to everything that they hold, the preferred holders first."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from types import ModuleType
from typing import Any

from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.holders import code
from gpumem_magic.sources.holders.folding import is_below
from gpumem_magic.sources.holders.found import Node, Reached, cut
from gpumem_magic.sources.holders.tensorless import Look, Sort, Tensorless, held_by_tensor
from gpumem_magic.sources.holders.unneeded import kept_for_a_number
from gpumem_magic.sources.objects.contents import (
    PLAIN_IDS,
    Contents,
    attribute,
    fields,
    is_empty,
    is_node_type,
    is_plain,
    raw_names,
    raw_saved,
)
from gpumem_magic.sources.objects.modules import (
    OPTIMIZERS_OWN,
    bookkeeping,
    items,
    of_groups,
    of_module,
    of_states,
)
from gpumem_magic.sources.objects.ownership import Kind, Via, is_whole, parts_of
from gpumem_magic.values.inventory import HolderKind

_AGAIN = 20  # roots that lead to the same, of what begins with one word
_IN_ORDER, _OBJECTS_LAST = itemgetter(0, 1), itemgetter(1, 0)  # of the queues' keys
_CHECK = 4096  # objects between two looks at what is still unexplained
_MANY = 200_000
"""Objects, some 1 s, after which other objects than models and tensors come last, and the walk ends
as soon as every block is explained."""


_WORD = re.compile(r"\w*")


@dataclass(slots=True)
class Looked:
    """How far a look at the memory has come.

    objects: looked at so far. unexplained: bytes of blocks that nothing leads to as yet. cut_short:
    why not everything was looked at; empty where it was.
    """

    objects: int = 0
    unexplained: int = 0
    cut_short: str = ""


class Walk:
    """One walk. `add` where it sets out, `run`, then `ways.found` tells what leads to each block.

    Nothing of the user's runs: no property, no `__getattr__`, no comparison. It must be let go soon
    after, as it keeps what it has seen. again: roots that lead to what was seen before, each after
    the node that was first. looked: counts what it does.
    """

    def __init__(self, torch: Any, memory: DeviceMemory, looked: Looked) -> None:
        self.reached = Reached()
        self.looked = looked
        self.again: list[tuple[Node, str]] = []
        self.seen: dict[int, tuple[Any, Node]] = {}  # keeps what it has seen: ids stay valid
        self._torch = torch
        self._base = torch._C.TensorBase
        self._memory = memory
        self._contents = Contents(code=True)
        self._queues: dict[tuple[float, bool], deque[Node]] = {}
        self._visits: dict[int, _Visit] = {}
        self._raw: dict[int, tuple[str, ...]] = {}
        self._names: dict[int, tuple[Via, str]] = {}  # of parameters, by id
        self._tensorless = Tensorless(partial(_sort, torch, memory.locate))
        self._left_out = {id(fields(module)) for module in list(sys.modules.values())}

    def leave_out(self, thing: object) -> None:
        """Do not look into it."""
        self._left_out.add(id(thing))

    def set_out(self, nodes: Iterable[Node]) -> None:
        """As `add`, for roots, many of which may lead to nothing."""
        self.add(self._tensorless.others(list(nodes), itemgetter(0)))

    def add(self, nodes: Iterable[Node]) -> None:
        """Set out from here, after what was added before with holders of the same rank."""
        queues, visits = self._queues, self._visits
        for node in nodes:
            kind = type(node.thing)
            visit = visits.get(id(kind))
            if visit is None:
                visit = visits[id(kind)] = _visitor(self._torch, kind)
            key = node.holder.rank, visit is Walk._object
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = deque()
            queue.append(node)

    def run(self, most: int, *, to_the_end: bool = False, until_explained: bool = False) -> None:
        """One rank of holders by one, breadth first; of more than so many objects the rest is left
        out. Where there are many, models and tensors go before other objects. to_the_end: also
        where every block is explained. until_explained: no further than that."""
        end, first = self.looked.objects + most, _IN_ORDER
        many = 0 if until_explained else math.inf if to_the_end else _MANY
        while self._queues:
            key = min(self._queues, key=first)
            queue = self._queues[key]
            if not queue:
                del self._queues[key]
                continue
            self.looked.objects += 1
            if self._ends_at(end, many):
                for left in chain.from_iterable(self._queues.values()):
                    self._meets_again(left)  # also of what is not looked into
                self._queues.clear()
                return
            first = _OBJECTS_LAST if self.looked.objects > _MANY else _IN_ORDER
            node = queue.popleft()
            try:
                self.add(self._visit(node))
            except Exception:  # a container that changes, a class that raises: leave it out
                continue

    def unexplained(self) -> set[int]:
        """Addresses of the blocks that nothing leads to as yet."""
        blocks = (
            self._memory.blocks.keys() - self.reached.found.keys() - self._memory.libraries.keys()
        )
        self.looked.unexplained = sum(map(self._memory.blocks.__getitem__, blocks))
        return blocks

    def _ends_at(self, end: int, many: float) -> bool:
        """Whether so many objects were looked at, or, of `many`, enough."""
        count = self.looked.objects
        if count > end:
            self.looked.cut_short = f"after {end:,} objects"
            return True
        return count % _CHECK == 0 and not self.unexplained() and count > many

    def name_again(self) -> None:
        """Tell what was found of the roots that lead to the same: `also`."""
        ways, told = defaultdict(list), Counter[str]()
        for way in self.reached.found.values():
            ways[_begin(way.path)].append(way)
        for first, label in self.again:
            begin = _begin(first.path)
            told[begin] += 1
            for way in ways[begin] if told[begin] <= _AGAIN else ():
                if way.holder.label != label and is_below(way.path, first.path):
                    way.others[label] = None

    def modules(self) -> frozenset[str]:
        """The ways to modules that were seen."""
        return self._ways_to(self._torch.nn.Module)

    def tensors(self) -> frozenset[str]:
        """The ways to tensors that were seen."""
        return self._ways_to(self._torch.Tensor)

    def _ways_to(self, base: type) -> frozenset[str]:
        seen = self.seen.values()
        return frozenset(node.path for thing, node in seen if issubclass(type(thing), base))

    def owners_of_gradients(self) -> Iterator[Any]:
        """Tensors that were seen and have a gradient on the device."""
        for thing, _ in self.seen.values():
            if issubclass(type(thing), self._torch.Tensor) and self._base.is_leaf.__get__(thing):
                grad = self._base.grad.__get__(thing)
                if grad is not None and self._memory.locate(grad) is not None:
                    yield thing

    def _visit(self, node: Node) -> Iterable[Node]:
        visit = self._visits[id(type(node.thing))]
        if visit is Walk._tensor:
            self._own(node)
        elif visit is Walk._optimizer and node.holder.kind is HolderKind.VARIABLE:
            return [node._replace(holder=node.holder.inner(HolderKind.OPTIMIZER, node.path))]
        if self._meets_again(node) or id(node.thing) in self._left_out:
            return ()
        self.seen[id(node.thing)] = node.thing, node
        return visit(self, node)

    def _meets_again(self, node: Node) -> bool:
        """Whether the thing was seen before; of a root it is noted that it leads there."""
        known = self.seen.get(id(node.thing))
        is_heap = node.holder.kind is HolderKind.CYCLE  # garbage is no second holder
        if known is not None and node.path == node.holder.root and not is_heap:
            self.again.append((known[1], node.path))
        return known is not None

    def _object(self, node: Node) -> Iterable[Node]:
        _, _, holder, kind, via = node
        held = list(self._contents.of(node.thing, node.path))
        if not held:
            return list(_inner(node, code.of_opaque(node.thing, node.path)))
        return [
            Node(thing, cut(path), holder, kind, via)
            for path, thing in self._tensorless.others(held, itemgetter(1))
            if not is_empty(thing)
        ]

    def _namespace(self, node: Node) -> Iterable[Node]:
        return ()

    def _scaler(self, node: Node) -> Iterable[Node]:
        return self._object(node._replace(kind=Kind.BUFFER))

    def _module(self, node: Node) -> Iterable[Node]:
        """Parameters, buffers, modules, its own attributes, hooks."""
        for path, thing, kind, via in of_module(self._torch, node.thing, node.path):
            if kind is Kind.NAMED:
                yield node._replace(thing=thing, path=cut(path))
            else:
                yield Node(thing, path, node.holder, kind, via)
        held = fields(node.thing)
        for name in [name for name in bookkeeping(self._torch) & held.keys() if "hooks" in name]:
            path = attribute(node.path, name)
            for key, hook in items(held[name]):
                yield Node(hook, f"{path}[{key}]", node.holder.inner(HolderKind.HOOK, path))

    def _optimizer(self, node: Node) -> Iterable[Node]:
        """Parameters, settings that are tensors, states by their parameters' names, attributes."""
        held = fields(node.thing)
        for path, thing, kind in of_groups(node.path, held.get("param_groups")):
            via = Via.OPTIMIZER if kind is Kind.PARAMETER else node.via
            yield Node(thing, path, node.holder, kind, via)
        for path, thing in of_states(node.path, held.get("state"), self._name_of):
            if not is_plain(thing):
                yield node._replace(thing=thing, path=path, kind=Kind.STATE)
        for name, thing in list(held.items()):
            if name not in OPTIMIZERS_OWN:
                path = attribute(node.path, name)
                yield node._replace(thing=thing, path=path, kind=Kind.STATE)

    def _name_of(self, parameter: object) -> str | None:
        known = self._names.get(id(parameter))
        return known[1] if known else None

    def _storage(self, node: Node) -> Iterable[Node]:
        address = self._memory.locate_storage(node.thing)
        if address is not None:
            self.reached.add(address, node.holder, node.path, node.kind, Via.OPTIMIZER)
        return ()

    # tensors

    def _tensor(self, node: Node) -> Iterable[Node]:
        tensor, base = node.thing, self._base
        hooks = (base._backward_hooks, getattr(base, "_post_accumulate_grad_hooks", None))
        for table in hooks:
            held = table.__get__(tensor) if table is not None else None
            for key, hook in items(held or {}):
                path = f"{node.path}: hooks[{key}]"
                yield Node(hook, path, node.holder.inner(HolderKind.HOOK, f"{node.path}: hooks"))
        for name, thing in list(fields(tensor).items()):
            if not is_plain(thing):
                yield node._replace(thing=thing, path=cut(attribute(node.path, name)))
        if base.is_leaf.__get__(tensor) or base.retains_grad.__get__(tensor):
            grad = base.grad.__get__(tensor)
            if grad is not None:
                yield node._replace(thing=grad, path=f"{node.path}.grad", kind=Kind.GRADIENT)
        function = base.grad_fn.__get__(tensor)
        if function is not None:
            path = f"{node.path}.grad_fn"
            reason = kept_for_a_number(tensor, function, node.path)
            yield Node(function, path, node.holder.inner(HolderKind.GRAPH, path, reason))

    def _own(self, node: Node) -> None:
        """Note what owns a tensor's storage, or those of its parts if it has none of its own."""
        tensor, kind, via = node.thing, node.kind, node.via
        if kind >= Kind.STATE and self._is_parameter(tensor):
            via = Via.OPTIMIZER if kind is Kind.STATE else max(via, Via.NAME)
            kind = Kind.PARAMETER
        elif kind is Kind.NAMED and not is_whole(tensor):
            via = Via.OPTIMIZER  # a slice must not name a storage while the whole is there
        if kind is Kind.PARAMETER:
            self._name(node, via)
        try:
            address = self._memory.locate(tensor)
        except (RuntimeError, NotImplementedError):  # sparse, say
            address = None
        if address is not None:
            self.reached.add(address, node.holder, node.path, kind, via, tensor)
            return
        for name, part in parts_of(self._torch, tensor):
            self._own(node._replace(thing=part, path=node.path + name, kind=kind, via=via))

    def _name(self, node: Node, via: Via) -> None:
        """Remember what a parameter is called; its gradient has the same name."""
        known = self._names.get(id(node.thing))
        if known is None or via < known[0]:
            self._names[id(node.thing)] = via, node.path
            grad = self._base.grad.__get__(node.thing)
            if grad is not None:
                path = f"{node.path}.grad"
                self._own(Node(grad, path, node.holder, Kind.GRADIENT, via))

    def _is_parameter(self, tensor: Any) -> bool:
        if issubclass(type(tensor), self._torch.nn.Parameter):
            return True
        base = self._base
        return bool(base.requires_grad.__get__(tensor) and base.is_leaf.__get__(tensor))

    # graphs

    def _node(self, node: Node) -> Iterable[Node]:
        """Saved tensors, a custom function's context, and the nodes before this one."""
        function = node.thing
        kind = type(function)
        names = self._raw.get(id(kind))
        if names is None:
            names = self._raw[id(kind)] = raw_names(kind)
        way, graph, _ = node.path.partition(".grad_fn")
        begin = way + graph
        for name, raw in raw_saved(function, names):
            path = f"{begin}: {kind.__name__}.{name}"
            for thing in (getattr(raw, "data", None), getattr(raw, "unpack_hook", None)):
                if thing is not None:
                    yield node._replace(thing=thing, path=path)
        for name, thing in list(fields(function).items()):
            if not is_plain(thing):
                yield node._replace(thing=thing, path=cut(f"{begin}: {kind.__name__}.{name}"))
        leaf = getattr(function, "variable", None)
        if leaf is not None:
            yield node._replace(thing=leaf, path=f"{begin}: leaf")
        for before, _ in function.next_functions:
            if before is not None:
                yield node._replace(thing=before, path=begin)


_Visit = Callable[[Walk, Node], Iterable[Node]]


def _visitor(torch: Any, kind: type) -> _Visit:
    # Plain functions: bound methods would be a cycle, and keep a walk until a collection.
    for base, visit in (
        (torch.Tensor, Walk._tensor),
        (torch.nn.Module, Walk._module),
        (torch.optim.Optimizer, Walk._optimizer),
        (torch.UntypedStorage, Walk._storage),
        (torch.amp.GradScaler, Walk._scaler),
        (ModuleType, Walk._namespace),  # torch.ops.aten is one, of thousands of operators
    ):
        if issubclass(kind, base):
            return visit
    reader = code.reader_of(kind)
    if reader is not None:
        return lambda walk, node: _inner(node, reader(node.thing, node.path))
    return Walk._node if is_node_type(kind) else Walk._object


def _sort(torch: Any, locate: Callable[[Any], int | None], kind: type) -> Sort | Look:
    """What objects of a class may lead to, as far as `_visitor` knows."""
    if id(kind) in PLAIN_IDS or issubclass(kind, ModuleType):
        return Sort.PLAIN
    if kind is torch.Tensor:
        return partial(held_by_tensor, torch, locate)
    look = code.LOOKS.get(id(kind))
    if look is not None:
        return look
    if code.is_array(kind):
        return code.held_by_array
    return Sort.OPEN if _visitor(torch, kind) is Walk._object else Sort.UNKNOWN


def _inner(node: Node, edges: code.Edges) -> Iterator[Node]:
    for edge in edges:
        if is_plain(edge.thing):
            continue
        holder = node.holder
        if edge.kind is not None:
            holder = holder.inner(edge.kind, edge.label)
        yield node._replace(thing=edge.thing, path=cut(edge.path), holder=holder)


def _begin(path: str) -> str:
    """The word that a path begins with, as do all paths below it."""
    found = _WORD.match(path)
    return found[0] if found else ""
