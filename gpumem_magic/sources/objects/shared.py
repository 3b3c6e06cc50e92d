"""Which names hold a storage together, where counts of references prove that nobody else does."""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpumem_magic.sources.objects.namespaces import is_shells_own

_MOST: Final = 100_000
"""Objects that are looked at: a tenth of a second."""


def find_holders(
    names: Mapping[str, Any], locate: Callable[[Any], int | None]
) -> Mapping[int, frozenset[str] | None]:
    """By address of its storage: the names that lead to it; None where something else holds it, or
    may: a frame, a graph, an output, a library. Empty where that is much work.

    names: a copy of a namespace, or of a function's variables, that nobody else has. Nothing of the
    user's runs, and nothing is kept.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    with torch._C.DisableTorchFunction():
        met = _Met(torch, names)
        return _holders(torch, met, locate) if met.complete else {}


def _holders(
    torch: Any, met: _Met, locate: Callable[[Any], int | None]
) -> Mapping[int, frozenset[str] | None]:
    unknown = met.reached(met.held_from_outside())
    leading = {name: met.reached([place]) for name, place in met.roots.items()}
    tensors: dict[int, list[int]] = {}
    for place, thing in enumerate(met.things):
        if issubclass(type(thing), torch.Tensor) and (address := locate(thing)) is not None:
            tensors.setdefault(address, []).append(place)
    found: dict[int, frozenset[str] | None] = {}
    for address, places in tensors.items():
        by = frozenset(n for n, reached in leading.items() if not reached.isdisjoint(places))
        proven = unknown.isdisjoint(places) and _all_known(torch, [met.things[i] for i in places])
        found[address] = by if proven else None
    return found


_OF_STORAGE: Final = 3
"""References to a storage's object, as torch makes one for a moment, and `getrefcount` sees it."""


class _Met:
    """Objects that the names lead to, and the places of what each of them refers to."""

    def __init__(self, torch: Any, names: Mapping[str, Any]) -> None:
        self._torch = torch
        self.things: list[Any] = []
        self._places: dict[int, int] = {}
        self._inner: list[list[int]] = []
        self.roots = {
            name: self._place(value)
            for name, value in names.items()
            if not is_shells_own(name) and self._is_looked_into(value)
        }
        while len(self._inner) < len(self.things) <= _MOST:
            self._inner.append([*map(self._place, self._referents(self.things[len(self._inner)]))])
        self.complete = len(self.things) <= _MOST

    def _place(self, thing: Any) -> int:
        if id(thing) not in self._places:
            self._places[id(thing)] = len(self.things)
            self.things.append(thing)
        return self._places[id(thing)]

    def _is_looked_into(self, thing: Any) -> bool:
        kind = type(thing)
        if issubclass(kind, types.ModuleType):
            return False
        if kind is types.FunctionType:
            return bool(thing.__module__ == "__main__")  # libraries' lead everywhere
        if issubclass(kind, type):
            return bool(type.__getattribute__(thing, "__module__") == "__main__")
        if kind is dict and "__spec__" in thing and "__loader__" in thing:
            return False  # a module's, as the notebook's names are
        return gc.is_tracked(thing)

    def _referents(self, thing: Any) -> list[Any]:
        tracked = filter(gc.is_tracked, gc.get_referents(thing))
        found = [*itertools.islice(filter(self._is_looked_into, tracked), _MOST + 1)]
        if issubclass(type(thing), self._torch.Tensor) and thing._base is not None:
            found.append(thing._base)  # C++ holds it
        return found

    def held_from_outside(self) -> list[int]:
        """Objects with more references than names and other objects explain."""
        named = [*self.roots.values()] * 2  # the namespace has each, and its copy
        known = Counter(itertools.chain(*self._inner, named))
        probe = [object()]
        ours = sys.getrefcount(probe[0])
        counted = range(len(self.things))
        return [i for i in counted if sys.getrefcount(self.things[i]) - ours > known[i]]

    def reached(self, places: list[int]) -> set[int]:
        """These, and all that they lead to."""
        found, waiting = set(places), list(places)
        while waiting:
            fresh = set(self._inner[waiting.pop()]) - found
            found |= fresh
            waiting += fresh
        return found


def _all_known(torch: Any, tensors: list[Any]) -> bool:
    """Whether these are all the tensors of their storage, and C++ (a graph, say) holds none."""
    views = Counter(id(tensor._base) for tensor in tensors)
    for tensor in tensors:
        if tensor._use_count() - 1 > views[id(tensor)]:
            return False
    storage = tensors[0].untyped_storage()
    if sys.getrefcount(storage) > _OF_STORAGE:
        return False
    return bool(torch._C._storage_Use_Count(storage._cdata) <= len(tensors) + 1)
