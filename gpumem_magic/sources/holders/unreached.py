"""Tensors to which no name and no known place leads: traced back by what refers to them. Either it
ends at something known, or in a circle that waits for the garbage collector, or outside Python."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.holders.found import Node
from gpumem_magic.sources.holders.walk import Walk
from gpumem_magic.sources.objects.contents import fields, with_derived
from gpumem_magic.sources.objects.modules import items
from gpumem_magic.sources.objects.namespaces import is_shells_own
from gpumem_magic.sources.objects.ownership import Via
from gpumem_magic.sources.stacks.callstacks import address
from gpumem_magic.values.inventory import HolderKind

_LEVELS: Final = 64
"""Of the way back: a chain of more objects is not followed to its end."""

_OBJECTS: Final = 100_000
"""On all ways back together, or in one step on."""

_AT_ONCE: Final = 32
"""Objects that `gc.get_referrers` looks for in one go: it compares each reference with each of
them. For more, one look at all references by Python is faster."""


def trace_unreached(
    torch: Any, walk: Walk, memory: DeviceMemory, namespace: Mapping[str, Any]
) -> None:
    """Let `walk` go on from whatever holds the tensors that it did not reach."""
    walk.add(nodes_of_atexit(torch, memory, walk.unexplained()))
    walk.run(_OBJECTS)
    targets: list[Any] = []
    if walk.unexplained():
        everything = gc.get_objects()
        known = frozenset(map(id, everything))
        targets = tensors_in(torch, everything, memory, walk.unexplained())
    if not targets:
        return
    search = _Search(walk, known, namespace)
    met = search.up_from(targets)
    del targets, everything  # till here, so that nothing new had the id of what is known
    nodes, complete = search.nodes, search.complete
    del search
    walk.add(nodes)
    del nodes
    walk.run(_OBJECTS)
    if complete and walk.unexplained():
        walk.add(list(garbage_nodes(torch, met)))
        walk.run(_OBJECTS)


def tensors_in(
    torch: Any, things: Iterable[Any], memory: DeviceMemory, addresses: Collection[int]
) -> list[Any]:
    """Of all objects, the tensors and storages whose memory is at these addresses."""
    bases = torch._C.TensorBase, torch.UntypedStorage
    kinds = {address(kind) for base in bases for kind in with_derived(base)}
    return [t for t in things if address(type(t)) in kinds and _located(memory, t) in addresses]


def _located(memory: DeviceMemory, thing: Any) -> int | None:
    try:
        if hasattr(type(thing), "untyped_storage"):
            return memory.locate(thing)
        return memory.locate_storage(thing)
    except (RuntimeError, NotImplementedError):
        return None


class _Search:
    """Goes from objects to what refers to them, level by level. complete: it came to the end.

    known: ids of all objects that are not ours. namespace: the notebook's.
    """

    def __init__(self, walk: Walk, known: frozenset[int], namespace: Mapping[str, Any]) -> None:
        self.nodes: list[Node] = []
        self.complete = False
        self._looked = walk.looked
        self._seen = walk.seen
        self._known = known
        self._namespace = namespace
        spaces = ((name, fields(module)) for name, module in list(sys.modules.items()))
        # kept: what has no names gets a new dictionary, whose id would soon be another's
        self._modules = {id(names): (name, names) for name, names in spaces}

    def up_from(self, targets: list[Any]) -> list[Any]:
        """Notes a node for each known thing that holds what leads to the targets. Returns all
        objects on the way."""
        met = {id(target): target for target in targets}
        frontier = list(targets)
        for _ in range(_LEVELS):
            frontier = list(self._above(frontier, met))
            self._looked.objects += len(frontier)
            self.complete = not frontier
            if self.complete or len(met) > _OBJECTS:
                break
        if not self.complete:
            self._looked.cut_short = f"after {len(met):,} objects on the way back"
        return list(met.values())

    def _above(self, frontier: list[Any], met: dict[int, Any]) -> Iterator[Any]:
        ids = {id(thing) for thing in frontier}
        for thing in _referrers(frontier):
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
        elif thing is self._namespace:
            self.nodes += _globals(self._namespace, "", held)
        elif id(thing) in self._modules:
            self.nodes += _globals(thing, self._modules[id(thing)][0], held)
        elif issubclass(type(thing), type):
            parts = (type.__getattribute__(thing, name) for name in ("__module__", "__name__"))
            name = ".".join(map(str, parts))
            self.nodes += [Node.root(HolderKind.MODULE_STATE, name, each) for each in held]
        else:
            return False
        return True


def nodes_of_atexit(torch: Any, memory: DeviceMemory, blocks: Collection[int]) -> Iterator[Node]:
    """The arguments of functions that `atexit` will call. The interpreter keeps them where no
    object leads to: they are tuples, as many as there are such functions at most, that nothing
    refers to."""
    most = atexit._ncallbacks() if blocks else 0
    if not most:
        return
    tensors = tensors_in(torch, gc.get_objects(), memory, blocks)
    given = [t for t in _referrers(tensors) if type(t) is tuple]
    ids = {id(arguments) for arguments in given}
    for holder in _referrers(given):
        if holder is not given:
            ids.difference_update(map(id, gc.get_referents(holder)))
    alone = [arguments for arguments in given if id(arguments) in ids]
    for number, arguments in enumerate(alone if len(alone) <= most else ()):
        path = f"atexit: arguments[{number}]"
        yield Node.root(HolderKind.MODULE_STATE, path, arguments)


def _referrers(things: list[Any]) -> list[Any]:
    """All objects that refer to one of the things."""
    if len(things) <= _AT_ONCE:
        return gc.get_referrers(*things)
    has_none = set(map(address, things)).isdisjoint
    return [t for t in gc.get_objects() if not has_none(map(address, gc.get_referents(t)))]


def _globals(names: Mapping[str, Any], module: str, held: list[Any]) -> Iterator[Node]:
    """Those of a module's names that stand for a held thing; of the notebook's where `module` is
    empty."""
    for key, value in list(names.items()):
        if any(value is each for each in held):
            if is_shells_own(key):
                yield Node.root(HolderKind.OUTPUT_HISTORY, key, value)
            elif not module:
                yield Node.root(HolderKind.VARIABLE, key, value)
            else:
                yield Node.root(HolderKind.MODULE_STATE, f"{module}.{key}", value)


def garbage_nodes(torch: Any, met: list[Any]) -> Iterator[Node]:
    """Where to set out to come to all garbage among `met`: modules first, then other objects.

    met: objects with all that refers to them. Nobody but the list must refer to them meanwhile.
    """
    lost = _garbage(met)
    inner = {
        id(child)
        for thing in lost
        if issubclass(type(thing), torch.nn.Module)
        for _, child in items(fields(thing).get("_modules"))
    }

    def place(thing: Any) -> int:
        if issubclass(type(thing), torch.nn.Module):
            return 1 if id(thing) in inner else 0
        return 2 if fields(thing) and not issubclass(type(thing), torch.Tensor) else 3

    for thing in sorted(lost, key=place):
        name = f"<{type(thing).__name__}>"
        via = Via.OPTIMIZER if place(thing) == 3 else Via.NAME  # the other names say more
        yield Node.root(HolderKind.CYCLE, name, thing, via)


def _garbage(met: list[Any]) -> list[Any]:
    """Those that no reference from outside of `met` leads to (Modules/gcmodule.c does the same)."""
    places = {id(thing): i for i, thing in enumerate(met)}
    inside = [0] * len(met)
    for i in range(len(met)):
        for place in _referents(met, i, places):
            inside[place] += 1
    probe = [object()]
    ours = sys.getrefcount(probe[0])
    waiting = [i for i in range(len(met)) if sys.getrefcount(met[i]) - ours > inside[i]]
    alive = set(waiting)
    while waiting:
        fresh = set(_referents(met, waiting.pop(), places)) - alive
        alive |= fresh
        waiting += fresh
    return [thing for i, thing in enumerate(met) if i not in alive]


def _referents(met: list[Any], i: int, places: dict[int, int]) -> list[int]:
    return [places[id(each)] for each in gc.get_referents(met[i]) if id(each) in places]
