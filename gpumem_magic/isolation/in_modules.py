"""What loaded modules hold: apart, as both what tells of effects and what redirects them ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InModules(Generic[T]):
    """What is found in the loaded modules; each is looked at once. Asked before a fork it costs
    less: to look at an object in the child copies its page.

    look: gives what is found in the module of that name.
    """

    def __init__(self, look: Callable[[str], Iterable[T]]) -> None:
        self._look = look
        self._found: dict[str, tuple[T, ...]] = {}
        self._state: tuple[int, str | None] = 0, None
        self._all: tuple[T, ...] = ()

    def __call__(self) -> tuple[T, ...]:
        """What there is now, in the order in which the modules were loaded."""
        state = len(sys.modules), next(reversed(sys.modules), None)
        if state != self._state:
            loaded = [*sys.modules]
            for name in loaded:
                if name not in self._found:
                    self._found[name] = tuple(self._look(name))
            self._state = state
            self._all = tuple(found for name in loaded for found in self._found[name])
        return self._all


def namespace_of(module: Any) -> dict[str, Any]:
    """The names in a module, which may be any object; one that loads itself late is not loaded."""
    try:
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names
