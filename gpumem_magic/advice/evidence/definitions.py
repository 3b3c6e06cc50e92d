"""Which statements gave a name the value that is read at some place of a cell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.tree import FUNCTIONS, LOOPS, Function

_CHANGING = (
    *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "push", "put"),
    *("store", "remember", "save", "record", "log", "write", "put_nowait", "add_", "copy_"),
)
"""Methods that keep what they are given."""


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


def plain_names(target: ast.expr) -> Iterator[str]:
    """The names that an assignment to this target binds anew."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from plain_names(item)
    elif isinstance(target, ast.Starred):
        yield from plain_names(target.value)


def names_in(node: ast.AST) -> set[str]:
    """All names inside a node."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters."""
    all_of = function.args
    named = [*all_of.posonlyargs, *all_of.args, *all_of.kwonlyargs]
    return [a.arg for a in (*named, all_of.vararg, all_of.kwarg) if a is not None]


def targets(statement: ast.stmt) -> list[ast.expr]:
    """What a statement assigns to, or changes by a method that keeps its arguments."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        return [statement.target]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [i.optional_vars for i in statement.items if i.optional_vars is not None]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and called.attr in _CHANGING:
            return [called.value]
    return []


def defined(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or whose objects it changes."""
    found = {name for target in targets(statement) if (name := root(target))}
    found.update(name for target in targets(statement) for name in plain_names(target))
    for node in header(statement):
        found.update(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
    return found


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


def root(node: ast.expr) -> str:
    """`a` of `a.b[0].c`; "" where it begins with something else."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def header(statement: ast.stmt) -> list[ast.expr]:
    """The expressions that a statement itself evaluates: of a loop, what it loops over."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.While, ast.If)):
        return [statement.test]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        return [statement.value] if statement.value is not None else []
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Try, ast.Match)):
        return []
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
