"""The namespace that a dry run is in as the module `__main__`, so that pickle and torch's compiler
find there what the cell defines."""

from __future__ import annotations

import sys
import types
from typing import Any


def become_main(namespace: dict[str, Any]) -> None:
    """Let what the cell defines be of `__main__`, also where the caller's names are no module's."""
    main = sys.modules["__main__"]
    if namespace.setdefault("__name__", "__main__") == "__main__" and namespace is not vars(main):
        sys.modules["__main__"] = _Main(namespace, main)


class _Main(types.ModuleType):
    """A module whose attributes are the names of `namespace`, and behind them those of `main`."""

    def __init__(self, namespace: dict[str, Any], main: types.ModuleType) -> None:
        super().__init__("__main__")
        vars(self).update(_names=namespace, _main=main)

    def __getattr__(self, name: str) -> Any:
        names = vars(self)["_names"]
        return names[name] if name in names else getattr(vars(self)["_main"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._names[name] = value
