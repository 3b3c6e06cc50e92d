"""Functions and classes of libraries that a cell replaces (`torch.relu = mine`): put back after."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

_ABSENT: Any = object()
_SETTERS = ("setattr", "delattr")


@contextlib.contextmanager
def replaced_names_put_back(tree: ast.Module, namespace: Mapping[str, Any]) -> Iterator[None]:
    """Within, the cell may set and delete attributes of modules and of their classes; afterwards
    those that it names are as they were.
    """
    before = [  # nothing else may be held while the cell runs: tensors die when it lets them go
        (owner, name, vars(owner).get(name, _ABSENT))
        for owner, name in _Found(tree, namespace).attributes()
    ]
    try:
        yield
    finally:
        for owner, name, value in before:
            if vars(owner).get(name, _ABSENT) is value:
                continue
            with contextlib.suppress(AttributeError, TypeError):  # a class of C cannot have changed
                if value is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)


class _Found:
    """What a program sets and deletes, as far as modules and classes are concerned."""

    def __init__(self, tree: ast.Module, namespace: Mapping[str, Any]) -> None:
        self._tree = tree
        self._known = {**namespace, **dict(_imported(tree))}

    def attributes(self) -> list[tuple[Any, str]]:
        """Each module or class with the name of an attribute."""
        found = []
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
                found.append((self._meant(node.value), node.attr))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _SETTERS:
                owner, name = (*node.args, None, None)[:2]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found.append((self._meant(owner), name.value))
        return [(owner, name) for owner, name in found if isinstance(owner, (_MODULE, type))]

    def _meant(self, node: ast.AST | None) -> Any:
        """What a name, or an attribute of a module or a class, stands for before the cell runs;
        none of the user's code is called."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        owner = self._meant(node.value)
        if isinstance(owner, _MODULE):
            return vars(owner).get(node.attr)
        if isinstance(owner, type):
            return inspect.getattr_static(owner, node.attr, None)
        return None


_MODULE = types.ModuleType


def _imported(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names that the cell imports from modules that are loaded already."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or name, sys.modules.get(name)
        elif isinstance(node, ast.ImportFrom) and node.module in sys.modules:
            module = sys.modules[node.module]
            for alias in node.names:
                yield alias.asname or alias.name, vars(module).get(alias.name)
