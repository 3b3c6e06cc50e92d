"""Which names of the notebook a cell can reach, by its own code and by what that code calls."""

from __future__ import annotations

import ast
import gc
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpumem_magic.sources.virtual.dryrun.atoms import ATOMS

_ANYTHING: Final = frozenset(
    ("globals", "locals", "vars", "dir", "eval", "exec", "get_ipython", "__main__", "__import__")
)
"""Whoever calls these may reach names that stand nowhere in the code."""

_LEAVES: Final = ATOMS - {property, staticmethod, classmethod}
_OBJECTS: Final = 500_000


def names_reached(tree: ast.Module, namespace: Mapping[str, Any]) -> frozenset[str] | None:
    """Names of `namespace` that the cell may read, set or delete; None: maybe all of them.

    Functions and classes count with their code, objects with their classes and all they hold. A
    name that the cell only sets is among them, because what it held is let go then.
    """
    search = _Search(namespace)
    search.add(_names_in(tree))
    return search.result()


def _names_in(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return found


class _Search:
    """Follows names to objects, and their code to further names."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._names: set[str] = set()
        self._waiting: list[Any] = []
        self._seen = {id(vars(m)) for m in list(sys.modules.values()) if _is_module(m)}
        self._seen.add(id(namespace))
        self._kept: list[Any] = []  # so that ids stay theirs
        self._everything = False

    def add(self, names: Iterable[str]) -> None:
        """Code was met that uses these names."""
        for name in names:
            if name in self._names:
                continue
            if name in self._namespace:
                self._names.add(name)
                self._waiting.append(self._namespace[name])
            if name in _ANYTHING and _is_builtin(name, self._namespace):
                self._everything = True

    def result(self) -> frozenset[str] | None:
        """The names, when all objects have been followed."""
        while self._waiting and not self._everything:
            if len(self._seen) > _OBJECTS:
                return None
            self._follow(self._waiting.pop())
        return None if self._everything else frozenset(self._names)

    def _follow(self, thing: Any) -> None:
        if type(thing) in _LEAVES or id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        self._kept.append(thing)
        if isinstance(thing, (types.ModuleType, types.FrameType)):
            return
        if isinstance(thing, type):
            self._follow_class(thing)
            return
        if isinstance(thing, types.FunctionType) and thing.__globals__ is self._namespace:
            self.add(_names_of_code(thing.__code__))
        if isinstance(thing, types.GeneratorType) and thing.gi_code is not None:
            self.add(_names_of_code(thing.gi_code))
        self._waiting.append(type(thing))
        if gc.is_tracked(thing):
            self._waiting += [each for each in gc.get_referents(thing) if type(each) not in _LEAVES]

    def _follow_class(self, kind: type) -> None:
        functions = (v for v in vars(kind).values() if isinstance(v, types.FunctionType))
        if kind.__module__ == "__main__" or any(
            f.__globals__ is self._namespace for f in functions
        ):
            self._waiting += [*vars(kind).values(), *kind.__bases__, type(kind)]


def _is_module(module: object) -> bool:
    return type(module) is types.ModuleType


def _is_builtin(name: str, namespace: Mapping[str, Any]) -> bool:
    """IPython's own get_ipython stands in the namespace."""
    return name == "get_ipython" or name not in namespace


def _names_of_code(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of_code(constant)
