"""Objects that only refer to each other, told as Python's garbage collector does it, but collecting
nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any, Final

from gpumem_magic.sources.holders.found import Holder, Node
from gpumem_magic.sources.objects.contents import fields
from gpumem_magic.sources.objects.modules import items
from gpumem_magic.sources.objects.ownership import Via
from gpumem_magic.values.inventory import HolderKind

_REASON: Final = "nothing leads to it any more: the garbage collector will free it"


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
        yield Node(thing, name, Holder.of(HolderKind.CYCLE, name, _REASON), via=via)


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
