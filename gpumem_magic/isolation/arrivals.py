"""Libraries that the code of a dry run imports: what has to be replaced in them is, on arrival."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable
from typing import Any

MULTIPROCESSING = ("multiprocessing", "multiprocess")
"""The package, and its copy that pickles more (`datasets` has it)."""


class Arrivals:
    """Runs an action for a module that is loaded, now or by an import of the running code.

    For a process that ends with the dry run: nothing is put back.
    """

    def __init__(self) -> None:
        self._awaited: list[tuple[str, str, Callable[[Any], None]]] = []
        self._seen = 0
        self._depth = 0
        builtins.__import__ = self._looking(builtins.__import__)
        machinery: Any = importlib._bootstrap
        machinery._gcd_import = self._looking(machinery._gcd_import)

    def expect(self, module: str, action: Callable[[Any], None], attribute: str = "") -> None:
        """Call `action(module)` once it is loaded, if it has `attribute`."""
        self._awaited.append((module, attribute, action))
        self._act(self._awaited[-1])

    @property
    def is_importing(self) -> bool:
        """Whether the code that runs is that of a module which is being imported."""
        return self._depth > 0

    def look(self) -> None:
        """Act on what has arrived since the last look."""
        self._seen = len(sys.modules)
        for expected in [each for each in self._awaited if each[0] in sys.modules]:
            self._act(expected)

    def _looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`import` and `importlib.import_module`, and a look after them."""

        def import_module(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                module = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if len(sys.modules) != self._seen:
                self.look()
            return module

        return import_module

    def _act(self, expected: tuple[str, str, Callable[[Any], None]]) -> None:
        name, attribute, action = expected
        module = sys.modules.get(name)
        if module is None or expected not in self._awaited:  # another action imports, and looks
            return
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            self._seen = 0  # still being imported: look again
            return
        self._awaited.remove(expected)
        if not attribute or attribute in vars(module):
            action(module)
