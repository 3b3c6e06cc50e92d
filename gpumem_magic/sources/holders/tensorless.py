"""Tells what certainly leads to no tensor, many objects at once, for a walk to pass them by."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from gpumem_magic.sources.objects.contents import SNIFF, fields, seems_plain
from gpumem_magic.sources.stacks.callstacks import address

_CHUNK: Final = 64
_OBJECTS: Final = 16_384  # below one chunk; a walk looks closer at more than that
_WASTE: Final = 100_000
"""Objects looked at for nothing, some 10 ms, after which it is given up: they hold too much."""

_T = TypeVar("_T")


class Sort(Enum):
    """What objects of a class may hold: nothing; what the garbage collector says; anything."""

    PLAIN = 0
    OPEN = 1
    UNKNOWN = 2


Look = Callable[[Any], "Iterable[Any] | None"]
"""Tells what an object holds, of a class that needs a closer look; None: it may hold anything."""


class Tensorless:
    """Asks the garbage collector, not the objects, what they hold: nothing of theirs runs, and no
    `__dict__` comes to be by being looked at. sort: what to think of a class, asked once of each.
    """

    def __init__(self, sort: Callable[[type], Sort | Look]) -> None:
        self._sort = sort
        self._sorts: dict[int, Sort | Look] = {}
        self._plain: set[int] = set()  # ids of classes
        self._classes: list[type] = []
        self._known: dict[int, Any] = {}  # keeps them: ids stay valid
        self._left = _WASTE

    def others(self, rows: Sequence[_T], thing: Callable[[_T], object]) -> Iterator[_T]:
        """The rows whose `thing` may lead to a tensor."""
        for start in range(0, len(rows), _CHUNK):
            yield from self._others_of(rows[start : start + _CHUNK], thing)

    def _others_of(self, rows: Sequence[_T], thing: Callable[[_T], object]) -> Iterator[_T]:
        if self._left <= 0:
            yield from rows
        elif not self._all_tensorless([thing(row) for row in rows]):
            if len(rows) == 1:
                yield rows[0]
                return
            half = len(rows) // 2
            yield from self._others_of(rows[:half], thing)
            yield from self._others_of(rows[half:], thing)

    def _all_tensorless(self, things: list[Any]) -> bool:
        """Whether these objects, and all that they lead to, hold no tensor."""
        met: dict[int, Any] = {}
        level = things
        classes: set[int] = set()
        while level:
            fresh = self._open(level, met, classes)
            too_many = len(met) > _OBJECTS
            if fresh is None or too_many:
                if len(things) == 1 or not too_many:  # half of them may be few enough
                    self._left -= len(met) + 1
                return False
            level = gc.get_referents(*fresh)
        self._known.update(met)
        return True

    def _open(self, things: list[Any], met: dict[int, Any], classes: set[int]) -> list[Any] | None:
        """Those to look into, or None where one may hold anything. classes: of objects above."""
        sorts, known, plain = self._sorts, self._known, self._plain
        fresh = []
        waiting = [thing for thing in things if address(type(thing)) not in plain]
        for thing in waiting:
            kind, place = type(thing), address(thing)
            if place in met or place in known or place in classes:
                continue
            sort = sorts.get(address(kind)) or self._ask(kind)
            if sort is Sort.OPEN:
                if address(kind) in _SIZED and len(thing) >= SNIFF:
                    if not seems_plain(thing):
                        return None
                    continue
                met[place] = thing
                fresh.append(thing)
            elif sort is Sort.UNKNOWN:
                return None
            elif not isinstance(sort, Sort):
                inner = sort(thing)
                if inner is None:
                    return None
                waiting += inner
        classes.update(map(address, map(type, fresh)))
        return fresh

    def _ask(self, kind: type) -> Sort | Look:
        """What to think of a class. (It is kept, so that its id stays its own.)"""
        self._classes.append(kind)
        sort = self._sorts[address(kind)] = self._sort(kind)
        if sort is Sort.PLAIN:
            self._plain.add(address(kind))
        return sort


def held_by_tensor(
    torch: Any, locate: Callable[[Any], int | None], tensor: Any
) -> tuple[Any, ...] | None:
    """Nothing, of a tensor without a graph that is elsewhere."""
    base = torch._C.TensorBase
    told = base.requires_grad.__get__(tensor) or base.layout.__get__(tensor) is not torch.strided
    held = told or base._backward_hooks.__get__(tensor) or base._grad.__get__(tensor) is not None
    return None if held or fields(tensor) or locate(tensor) is not None else ()


_SIZED: Final = frozenset(map(address, (list, dict, tuple, set, frozenset)))
