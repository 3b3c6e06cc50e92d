"""When Python collects garbage in a dry run: seldom among old objects, and not while an error goes
through the functions that it ends. And what it let go of then, which circles had kept."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpumem_magic.virtual.storages import Storages

_SELDOM: Final = 1000
"""Collections of younger objects after which old ones are looked at: a hundred times Python's."""

_LATER: Final = 100_000
"""Objects that are made until Python collects garbage by itself again."""


class Collection:
    """freed: from where to where, in events of the allocator, blocks were freed as garbage."""

    def __init__(self, events_so_far: Callable[[], Sequence[Any]]) -> None:
        self.freed: list[tuple[int, int]] = []
        self._events = events_so_far
        self._began = 0

    def install(self, storages: Storages) -> None:
        """Tell of it, and delay it, from here on."""
        gc.callbacks.append(self._hear)
        _delay(storages)

    def _hear(self, phase: str, _: object) -> None:
        now = len(self._events())
        if phase == "start":
            self._began = now
        elif now > self._began:
            self.freed.append((self._began, now))


def _delay(storages: Storages) -> None:
    """Leave old objects alone: what a dry run itself makes would have Python walk
    through all objects of the notebook (0.25 s for half a million, whose pages are copied), at
    moments when it does not in the cell. And wait after each error for want of memory, until it is
    known what held it: one that goes through many functions makes objects enough for a collection
    of what circles had kept. `gc.collect()` waits for nothing."""
    young, middle, _ = gc.get_threshold()
    usual = young, middle, _SELDOM
    gc.set_threshold(*usual)

    def wait() -> None:
        if gc.get_threshold() == usual and young:
            gc.set_threshold(_LATER, middle, _SELDOM)
            gc.callbacks.append(go_on)

    def go_on(*_: Any) -> None:
        gc.set_threshold(*usual)
        if go_on in gc.callbacks:
            gc.callbacks.remove(go_on)

    storages.on_refusal = wait
