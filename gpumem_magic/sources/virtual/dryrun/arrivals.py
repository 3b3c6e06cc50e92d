"""Libraries that the code of a dry run imports: what has to be replaced in them is, on arrival."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from gpumem_magic.sources.virtual.patches import Patches


class Arrivals:
    """Runs an action for a module that is loaded, now or by an import of the running code."""

    def __init__(self, patches: Patches) -> None:
        self._awaited: list[tuple[str, str, Callable[[Any], None]]] = []
        self._seen = 0
        original = builtins.__import__

        def __import__(*args: Any, **kwargs: Any) -> Any:  # noqa: N807
            module = original(*args, **kwargs)
            if len(sys.modules) != self._seen:
                self.look()
            return module

        patches.set(builtins, "__import__", __import__)

    def expect(self, module: str, action: Callable[[Any], None], attribute: str = "") -> None:
        """Call `action(module)` once it is loaded, if it has `attribute`."""
        self._awaited.append((module, attribute, action))
        self._act(self._awaited[-1])

    def look(self) -> None:
        """Act on what has arrived since the last look."""
        self._seen = len(sys.modules)
        for expected in tuple(self._awaited):
            self._act(expected)

    def _act(self, expected: tuple[str, str, Callable[[Any], None]]) -> None:
        name, attribute, action = expected
        module = sys.modules.get(name)
        if module is None:
            return
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            self._seen = 0  # still being imported: look again
            return
        self._awaited.remove(expected)
        if not attribute or attribute in vars(module):
            action(module)
