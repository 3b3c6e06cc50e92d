"""Tensors to which no name and no known place leads: traced back by what refers to them. Either it
ends at something known, or in a circle that waits for the garbage collector, or outside Python."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.holders.found import Holder, Node
from gpumem_magic.sources.holders.garbage import garbage_nodes
from gpumem_magic.sources.holders.roots import OUTPUTS, is_shells_own
from gpumem_magic.sources.holders.walk import Walk
from gpumem_magic.sources.objects.contents import fields
from gpumem_magic.values.inventory import HolderKind

_LEVELS: Final = 24
_OBJECTS: Final = 20_000
_AT_ONCE: Final = 8
"""Tensors to trace back together: `gc.get_referrers` compares each reference with each of them."""


def trace_unreached(torch: Any, walk: Walk, memory: DeviceMemory, deadline: float) -> bool:
    """Let `walk` go on from whatever holds the tensors that it did not reach; whether there was
    time to look for all of them."""
    found, libraries = walk.ways.found, memory.libraries
    targets: list[Any] = []
    if memory.blocks.keys() - found.keys() - libraries.keys():
        everything = gc.get_objects()
        known = frozenset(map(id, everything))
        unheld = memory.blocks.keys() - found.keys() - libraries.keys()
        targets = _tensors_in(torch, everything, memory, unheld)
        del everything
    targets.sort(key=lambda thing: memory.blocks[_located(memory, thing) or 0])
    in_time = True
    while targets:
        some = [targets.pop() for _ in range(min(_AT_ONCE, len(targets)))]
        some = [thing for thing in some if _located(memory, thing) not in found]
        if not some:
            continue
        nodes, complete = _holders(torch, walk, some, known, deadline)
        walk.add(nodes)
        walk.run()
        in_time = in_time and complete
        if time.thread_time() > deadline:
            return not targets and in_time
    return in_time


def _holders(
    torch: Any, walk: Walk, targets: list[Any], known: frozenset[int], deadline: float
) -> tuple[list[Node], bool]:
    """Where to go on to come to the targets, and whether there was time to look everywhere."""
    search = _Search(walk, known, deadline)
    met = search.up_from(targets)
    targets.clear()
    nodes, complete, late = search.nodes, search.complete, search.late
    del search
    if complete and not nodes:
        nodes = list(garbage_nodes(torch, met))
    return nodes, not late


def _tensors_in(
    torch: Any, things: Iterable[Any], memory: DeviceMemory, addresses: Collection[int]
) -> list[Any]:
    """Of all objects, the tensors and storages whose memory is at these addresses."""
    kinds = _ids(torch._C.TensorBase) | _ids(torch.UntypedStorage)
    return [t for t in things if id(type(t)) in kinds and _located(memory, t) in addresses]


def _located(memory: DeviceMemory, thing: Any) -> int | None:
    try:
        if hasattr(type(thing), "untyped_storage"):
            return memory.locate(thing)
        return memory.locate_storage(thing)
    except (RuntimeError, NotImplementedError):
        return None


def _ids(base: type) -> frozenset[int]:
    """Ids of a class and all its subclasses: asking an object could run its `__class__`."""
    found, waiting = set(), [base]
    while waiting:
        kind = waiting.pop()
        found.add(id(kind))
        waiting += type.__subclasses__(kind)
    return frozenset(found)


class _Search:
    """Goes from objects to what refers to them, level by level. complete: it came to the end. late:
    it had to stop, for time or for too many objects.

    known: ids of all objects that are not ours.
    """

    def __init__(self, walk: Walk, known: frozenset[int], deadline: float) -> None:
        self.nodes: list[Node] = []
        self.complete = False
        self.late = False
        self._seen = walk.seen
        self._known = known
        self._deadline = deadline
        self._modules: Mapping[int, str] = {
            id(fields(module)): name for name, module in list(sys.modules.items())
        }

    def up_from(self, targets: list[Any]) -> list[Any]:
        """Notes a node for each known thing that holds what leads to the targets. Returns all
        objects on the way."""
        met = {id(target): target for target in targets}
        frontier = list(targets)
        for _ in range(_LEVELS):
            frontier = list(self._above(frontier, met))
            if not frontier:
                self.complete = not self.late
                break
        return list(met.values())

    def _above(self, frontier: list[Any], met: dict[int, Any]) -> Iterator[Any]:
        for start in range(0, len(frontier), 4 * _AT_ONCE):
            if len(met) > _OBJECTS or time.thread_time() > self._deadline:
                self.late = True
                return
            some = frontier[start : start + 4 * _AT_ONCE]
            ids = {id(thing) for thing in some}
            for thing in gc.get_referrers(*some):
                if id(thing) not in self._known or id(thing) in met:
                    continue
                held = [each for each in gc.get_referents(thing) if id(each) in ids]
                if not self._is_end(thing, held):
                    met[id(thing)] = thing
                    yield thing

    def _is_end(self, thing: Any, held: list[Any]) -> bool:
        """Note what is held by something known, or by a module or a class."""
        seen = self._seen.get(id(thing))
        if seen is not None:
            self.nodes += [seen[1]._replace(thing=each) for each in held]
        elif id(thing) in self._modules:
            self.nodes += _globals(thing, self._modules[id(thing)], held)
        elif issubclass(type(thing), type):
            parts = (type.__getattribute__(thing, name) for name in ("__module__", "__name__"))
            name = ".".join(map(str, parts))
            self.nodes += [_module_state(each, name) for each in held]
        else:
            return False
        return True


def _globals(names: dict[str, Any], module: str, held: list[Any]) -> Iterator[Node]:
    for key, value in list(names.items()):
        if any(value is each for each in held):
            if is_shells_own(key):
                yield Node(value, key, Holder.of(HolderKind.OUTPUT_HISTORY, key, OUTPUTS))
            else:
                yield _module_state(value, f"{module}.{key}")


def _module_state(thing: Any, name: str) -> Node:
    return Node(thing, name, Holder.of(HolderKind.MODULE_STATE, name))
