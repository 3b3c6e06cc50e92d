"""Which statements gave a name the value that is read at some place of a cell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.tree import (
    FUNCTIONS,
    LOOPS,
    Function,
    defined,
    parameters,
    plain_names,
    targets,
)


@dataclass(frozen=True, slots=True)
class Reaching:
    """Statements whose value may be read. carried: those that did it in an earlier pass of a loop
    around the place. is_parameter: it may be an argument of the function that the place is in."""

    statements: tuple[ast.stmt, ...]
    carried: frozenset[ast.stmt]
    is_parameter: bool


class Definitions:
    """Where names and attributes of a cell get their values. Functions are told by their name."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._by_name: dict[tuple[Function | None, str], list[ast.stmt]] = {}
        self._by_attribute: dict[str, list[ast.stmt]] = {}
        self.functions: dict[str, list[Function]] = {}
        for node in code.nodes(ast.stmt):
            if isinstance(node, FUNCTIONS):
                self.functions.setdefault(node.name, []).append(node)
            else:
                self._enter(node)

    def _enter(self, statement: ast.stmt) -> None:
        scope = self._code.function(statement)
        for name in defined(statement):
            self._by_name.setdefault((scope, name), []).append(statement)
        for name in _attributes(statement):
            self._by_attribute.setdefault(name, []).append(statement)

    def of_attribute(self, name: str) -> list[ast.stmt]:
        """Statements that set, or add to, an attribute of this name of any object."""
        return self._by_attribute.get(name, [])

    def reaching(self, name: str, at: ast.stmt) -> Reaching:
        """The statements whose value a name may have right before the statement `at`."""
        scope = self._code.function(at)
        candidates = self._by_name.get((scope, name), [])
        if candidates:
            found, carried, complete = self._search(name, at, candidates)
            if complete:
                return Reaching(tuple(found), frozenset(carried), False)
        else:
            found, carried = [], set()
        if scope is None:
            return Reaching(tuple(found), frozenset(carried), False)
        if name in parameters(scope):
            return Reaching(tuple(found), frozenset(carried), True)
        return Reaching((*found, *self._outside(name, scope)), frozenset(carried), False)

    def _outside(self, name: str, scope: Function) -> list[ast.stmt]:
        """Definitions in the functions around a function, or in the cell."""
        above: Function | None = scope
        while above is not None:
            above = self._code.function(above)
            if found := self._by_name.get((above, name)):
                return found
        return []

    def _search(
        self, name: str, at: ast.stmt, candidates: list[ast.stmt]
    ) -> tuple[list[ast.stmt], set[ast.stmt], bool]:
        """Backwards through the blocks around a place, up to where the name surely got a value."""
        found: list[ast.stmt] = []
        carried: set[ast.stmt] = set()
        code, here = self._code, at
        while True:
            for before in self._defining(here, candidates):
                found += self._those_in(before, candidates, found)
                if _surely_defines(before, name):
                    return found, carried, True
            above = code.parent(here)
            while above is not None and not isinstance(above, ast.stmt):
                above = code.parent(above)
            if above is None or isinstance(above, (*FUNCTIONS, ast.ClassDef)):
                return found, carried, False
            if isinstance(above, LOOPS):
                again = self._those_in(above, candidates, found)
                carried |= set(again) - {above}
                found += again
                if not isinstance(above, ast.While) and name in names_in(above.target):
                    return found, carried, True
            elif isinstance(above, ast.Try):
                found += [s for s in self._those_in(above, candidates, found) if s is not at]
            here = above

    def _defining(self, here: ast.stmt, candidates: list[ast.stmt]) -> Iterator[ast.stmt]:
        """Statements above `here` in its block that are, or hold, candidates; the last first."""
        code, end = self._code, self._code.index(here)
        for candidate in code.above(candidates, here):
            place = code.beside(candidate, here)
            if place is not None and place < end:
                end = place
                yield code.block(here)[place]

    def _those_in(
        self, statement: ast.stmt, candidates: list[ast.stmt], found: list[ast.stmt]
    ) -> list[ast.stmt]:
        return [s for s in self._code.part(candidates, statement) if s not in found]


def _surely_defines(statement: ast.stmt, name: str) -> bool:
    """Whether a statement gives the name a new value whenever it runs."""
    if isinstance(statement, ast.Assign):
        return any(name in plain_names(target) for target in statement.targets)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return any(_surely_defines(inner, name) for inner in statement.body)
    if isinstance(statement, ast.If) and statement.orelse:
        return all(
            any(_surely_defines(inner, name) for inner in branch)
            for branch in (statement.body, statement.orelse)
        )
    return isinstance(statement, ast.AnnAssign) and (
        statement.value is not None and name in plain_names(statement.target)
    )


def names_in(node: ast.AST) -> set[str]:
    """All names inside a node."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _attributes(statement: ast.stmt) -> set[str]:
    found = set()
    for target in targets(statement):
        for item in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            inner = item
            while isinstance(inner, (ast.Subscript, ast.Call)):
                inner = inner.value if isinstance(inner, ast.Subscript) else inner.func
            if isinstance(inner, ast.Attribute):
                found.add(inner.attr)
    return found
