"""Who holds the memory of a device: every block in use, once, with the shortest way to it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumem_magic.sources.cuda.memory import likely_workspaces
from gpumem_magic.sources.cuda.recorder import no_collection
from gpumem_magic.sources.holders.assembly import by_category, items_of, put_together, summed
from gpumem_magic.sources.holders.folding import is_below, parent, pattern
from gpumem_magic.sources.holders.found import Found
from gpumem_magic.sources.holders.roots import (
    Root,
    hook_roots,
    module_roots,
    named_roots,
    running_roots,
)
from gpumem_magic.sources.holders.unneeded import with_reasons
from gpumem_magic.sources.holders.unreached import trace_unreached
from gpumem_magic.sources.holders.walk import Looked, Walk
from gpumem_magic.values.inventory import Breakdown, Inventory
from gpumem_magic.values.names import variable_of

if TYPE_CHECKING:
    from gpumem_magic.sources import Source
    from gpumem_magic.sources.device_memory import DeviceMemory

__all__ = ["MOST", "Looked", "Root", "break_down", "take_inventory"]

MOST = 2_000_000
"""Objects that are looked at, some 0.3 KB of host memory each."""


def take_inventory(
    source: Source,
    namespace: Mapping[str, Any],
    roots: Sequence[Root] = (),
    looked: Looked | None = None,
    *,
    most: int = MOST,
) -> Inventory:
    """Where the memory of the source's device is, and who holds it.

    namespace: the notebook's. roots: other places that keep things alive (see `shell_roots`).
    looked: tells how far the look has come while it goes on; given this, an interrupt ends it with
    what was found. most: objects after which it ends; what it has not come to is UNKNOWN.
    Nothing of the user's runs, nothing is kept, nothing is collected.
    """
    with no_collection():
        memory = source.memory()
        everywhere = _Places(namespace, namespace.keys(), roots, elsewhere=True, back=True)
        done = looked or Looked()
        found = _found(memory, everywhere, done, most, partly=looked is not None)
        unheld = memory.blocks.keys() - found.keys() - memory.libraries.keys()
        likely = {} if memory.device.virtual else likely_workspaces(memory, unheld)
        items = items_of(memory, found, {**memory.libraries, **likely})
        items = with_reasons(items, namespace.keys(), memory.stepped)
        return put_together(memory, summed(items), by_category(items), done.cut_short)


def break_down(
    source: Source, namespace: Mapping[str, Any], roots: Sequence[Root], name: str
) -> Breakdown:
    """All that a variable, or a part of one ("model.encoder"), leads to, by submodule and category.

    Raises KeyError where there is no such variable, AttributeError where it has no such part on the
    device; the argument of either is a sentence.
    """
    variable = variable_of(name)
    if variable not in namespace:
        raise KeyError(f"there is no variable {variable}")
    memory = source.memory()
    own = _found(memory, _Places(namespace, frozenset({variable})), Looked())
    rest = _found(memory, _Places(namespace, namespace.keys() - {variable}, roots, True), Looked())
    items = [
        replace(item, also=(rest[address].holder.label,) if address in rest else ())
        for address, item in zip(
            memory.blocks, items_of(memory, own, {}), strict=not memory.unlisted
        )
        if address in own and is_below(item.path, name)
    ]
    if not items and name != variable:
        raise AttributeError(f"{variable} has nothing on the device that is called {name}")
    parts = summed(items, lambda item: (pattern(parent(item.path)), item.kind, item.category))
    return Breakdown(name, sum(item.size for item in items), tuple(parts))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where to look: at some names of the namespace, at roots, at other modules and what runs, and
    at what refers to the rest."""

    namespace: Mapping[str, Any]
    names: Collection[str]
    roots: Sequence[Root] = ()
    elsewhere: bool = False
    back: bool = False


def _found(
    memory: DeviceMemory,
    places: _Places,
    looked: Looked,
    most: int = MOST,
    *,
    partly: bool = False,
) -> Mapping[int, Found]:
    """The best way to each block. partly: after an interrupt, what was found before it."""
    torch = sys.modules.get("torch")
    if torch is None or not (memory.blocks or memory.unlisted):
        return {}
    with no_collection(), torch._C.DisableTorchFunction(), memory.aside():
        walk = Walk(torch, memory, looked)
        try:
            _look(torch, walk, memory, places, most)
        except KeyboardInterrupt:
            if not partly:
                raise
            looked.cut_short = "by an interrupt"
        walk.name_again()
        return walk.reached.found


def _look(torch: Any, walk: Walk, memory: DeviceMemory, places: _Places, most: int) -> None:
    namespace = places.namespace
    walk.leave_out(namespace)
    walk.set_out(named_roots(torch, namespace, places.names))
    for root in places.roots:
        walk.add(root.nodes())
    if places.elsewhere:
        walk.set_out((*running_roots(namespace), *module_roots(namespace), *hook_roots()))
    walk.run(most)
    if places.back:
        trace_unreached(torch, walk, memory, namespace)
