"""Who holds the memory of a device: every block in use, once, with the shortest way to it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumem_magic.sources.cuda.memory import likely_workspaces
from gpumem_magic.sources.cuda.recorder import no_collection
from gpumem_magic.sources.holders.assembly import Item, by_category, items_of, summed
from gpumem_magic.sources.holders.folding import is_below, parent, pattern
from gpumem_magic.sources.holders.found import Found
from gpumem_magic.sources.holders.reconciled import put_together
from gpumem_magic.sources.holders.roots import (
    Root,
    hook_roots,
    module_roots,
    named_roots,
    running_roots,
)
from gpumem_magic.sources.holders.unneeded import with_reasons
from gpumem_magic.sources.holders.unreached import trace_unreached
from gpumem_magic.sources.holders.walk import Walk
from gpumem_magic.values.inventory import Breakdown, Inventory

if TYPE_CHECKING:
    from gpumem_magic.sources import Source
    from gpumem_magic.sources.device_memory import DeviceMemory

__all__ = ["Root", "break_down", "take_inventory"]


def take_inventory(
    source: Source,
    namespace: Mapping[str, Any],
    roots: Sequence[Root] = (),
    *,
    seconds: float = 3.0,
) -> Inventory:
    """Where the memory of the source's device is, and who holds it.

    namespace: the notebook's. roots: other places that keep things alive (see `shell_roots`).
    seconds: of this thread's time, after which the walk stops; what it has not come to is UNKNOWN.
    Nothing of the user's runs, nothing is kept, nothing is collected.
    """
    with no_collection():
        memory = source.memory()
        items, late = _items(memory, namespace, roots, seconds)
        items = with_reasons(items, namespace.keys(), memory.stepped)
        return put_together(memory, summed(items), by_category(items), late)


def break_down(
    source: Source,
    namespace: Mapping[str, Any],
    roots: Sequence[Root],
    name: str,
    *,
    seconds: float = 3.0,
) -> Breakdown:
    """All that a variable, or a part of one ("model.encoder"), leads to, by submodule and category.

    Raises KeyError where there is no such variable, AttributeError where it has no such part on the
    device; the argument of either is a sentence.
    """
    variable = re.split(r"[.\[]", name, maxsplit=1)[0]
    if variable not in namespace:
        raise KeyError(f"there is no variable {variable}")
    memory = source.memory()
    own = _found(memory, _Places(namespace, frozenset({variable})), seconds)[0]
    rest = _found(memory, _Places(namespace, namespace.keys() - {variable}, roots, True), seconds)[
        0
    ]
    items = [
        replace(item, also=(rest[address].holder.label,) if address in rest else ())
        for address, item in zip(memory.blocks, items_of(memory, own, {}), strict=True)
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


def _items(
    memory: DeviceMemory, namespace: Mapping[str, Any], roots: Sequence[Root], seconds: float
) -> tuple[list[Item], bool]:
    everywhere = _Places(namespace, namespace.keys(), roots, elsewhere=True, back=True)
    found, late = _found(memory, everywhere, seconds)
    unheld = memory.blocks.keys() - found.keys() - memory.libraries.keys()
    likely = {} if memory.device.virtual else likely_workspaces(memory, unheld)
    return items_of(memory, found, {**memory.libraries, **likely}), late


def _found(
    memory: DeviceMemory, places: _Places, seconds: float
) -> tuple[Mapping[int, Found], bool]:
    """The best way to each block, and whether there was no time to find them all."""
    torch = sys.modules.get("torch")
    if torch is None or not memory.blocks:
        return {}, False
    deadline = time.thread_time() + seconds
    namespace = places.namespace
    with no_collection(), torch._C.DisableTorchFunction(), memory.aside():
        walk = Walk(torch, memory, deadline)
        walk.leave_out(namespace)
        walk.set_out(named_roots(torch, namespace, places.names))
        for root in places.roots:
            walk.add(root.nodes())
        if places.elsewhere:
            walk.set_out((*running_roots(namespace), *module_roots(namespace), *hook_roots()))
        walk.run()
        late = walk.late
        if places.back and not late:
            late = not trace_unreached(torch, walk, memory, deadline)
        walk.name_again()
        return walk.ways.found, late
