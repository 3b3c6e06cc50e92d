"""Garbage that stays until it is known what held it, because memory ran out for that: an error that
goes through many functions makes objects enough for Python to collect what circles had kept."""

from __future__ import annotations

import gc
from typing import Any, Final

from gpumem_magic.virtual.storages import Storages

_LATER: Final = 100_000
"""Objects that are made until Python collects garbage by itself again."""


def install(storages: Storages) -> None:
    """Have it wait after each error for want of memory, from here on; `gc.collect()` does not."""
    usual = gc.get_threshold()

    def wait(*_: Any) -> None:
        if gc.get_threshold() == usual and usual[0]:
            gc.set_threshold(_LATER, *usual[1:])
            gc.callbacks.append(go_on)

    def go_on(*_: Any) -> None:
        gc.set_threshold(*usual)
        if go_on in gc.callbacks:
            gc.callbacks.remove(go_on)

    storages.oom_observers.append(wait)
