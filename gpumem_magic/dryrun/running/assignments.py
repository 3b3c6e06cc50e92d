"""Which assignments of a cell decide what a variable is when it is used, and other values there."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from typing import TypeGuard


def with_values(tree: ast.Module, values: Mapping[str, int]) -> tuple[ast.Module, frozenset[str]]:
    """A copy of `tree` that assigns these values, and the names that it does not assign before it
    uses them, which live in the namespace. Raises ValueError as `assignments` does."""
    tree = copy.deepcopy(tree)
    elsewhere = set()
    for name, value in values.items():
        found = assignments(tree, name)
        for place in found:
            place.value = ast.copy_location(ast.Constant(value), place.value or place)
        if not found:
            elsewhere.add(name)
    return tree, frozenset(elsewhere)


def assignments(tree: ast.Module, name: str) -> Sequence[ast.Assign | ast.AnnAssign | ast.keyword]:
    """The statements `name = ...` of the cell that its first use has its value from.

    They are those at the cell's top level, inside its blocks too, or else those of its functions.
    Where the cell has no such variable, they are the arguments `name=8` of its calls.
    Raises ValueError where the value comes from something else: a `for`, `+=`, `a, b = ...`.
    """
    top = _Scope(name)
    top.read(tree.body)
    inner = _inside(top)
    found = _all_found([top, *(scope for scope in inner if scope.is_global)])
    if found or top.is_used:
        return found
    local = _all_found([scope for scope in inner if not scope.is_global])
    return local or ([] if any(scope.is_used for scope in inner) else _arguments(tree, name))


def _arguments(tree: ast.Module, name: str) -> list[ast.keyword]:
    """Arguments of this name that are whole numbers. Raises ValueError where they differ."""
    values = {
        node: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == name and _is_number(node.value)
    }
    if len({*values.values()}) > 1:
        said = " and ".join(f"{value!r} in line {node.lineno}" for node, value in values.items())
        raise ValueError(f"the argument {name!r} is {said}: give both one variable, and fit that")
    return [*values]


def _is_number(value: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(value, ast.Constant) and type(value.value) is int


def _inside(scope: _Scope) -> list[_Scope]:
    """The scopes of the functions in `scope`, but for those that get the name as a parameter."""
    found = []
    for function in scope.functions:
        given = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        if scope.name not in given:
            inner = _Scope(scope.name)
            inner.read(function.body)
            found += [inner, *_inside(inner)]
    return found


def _all_found(scopes: Sequence[_Scope]) -> list[ast.Assign | ast.AnnAssign]:
    for scope in scopes:
        if scope.refusal is not None:
            raise ValueError(scope.refusal)
    return [statement for scope in scopes for statement in scope.found]


class _Scope(ast.NodeVisitor):
    """Reads the statements of one scope in the order in which they run.

    found: plain assignments to the name before its first use. functions: what is defined here and
    runs later. refusal: what else gives it a value before that. Reading it inside an assignment to
    itself is no use of it, as the assigned value is replaced.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[ast.Assign | ast.AnnAssign] = []
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.refusal: str | None = None
        self.is_used = False
        self.is_global = False

    def read(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(self._is_name(target) for target in node.targets):
            self._assigned(node)
            return
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if not self._is_name(node.target):
            self.generic_visit(node)
        elif node.value is not None:
            self._assigned(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if self._is_name(node.target):
            self._refuse(node, "changes it in place")
        else:
            self.visit(node.target)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        if self._is_name(node.target):
            self._refuse(node, "gives it several values in turn")
        self.visit(node.target)
        self.read([*node.body, *node.orelse])

    visit_AsyncFor = visit_For  # noqa: N815 - as ast.NodeVisitor looks for it

    def visit_Name(self, node: ast.Name) -> None:
        if node.id != self.name:
            return
        if isinstance(node.ctx, ast.Store):
            self._refuse(node, "assigns it together with others, or inside an expression")
        elif isinstance(node.ctx, ast.Load):
            self.is_used = True

    def visit_Global(self, node: ast.Global) -> None:
        self.is_global = self.is_global or self.name in node.names

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for expression in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if expression is not None:
                self.visit(expression)
        self.functions.append(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Its assignments make attributes; its methods may use the variable, later."""
        self.functions += [
            inner
            for inner in node.body
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """It runs later; what it is given as defaults is evaluated here."""
        self.visit(node.args)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._comprehension(node.generators, node.elt)

    visit_SetComp = visit_GeneratorExp = visit_ListComp  # noqa: N815

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, node.key, node.value)

    def _comprehension(self, generators: list[ast.comprehension], *results: ast.expr) -> None:
        """Its target is a variable of its own."""
        self.visit(generators[0].iter)
        targets = [node for g in generators for node in ast.walk(g.target)]
        if not any(isinstance(node, ast.Name) and node.id == self.name for node in targets):
            inner = [e for g in generators for e in (g.iter, *g.ifs)]
            for expression in (*inner, *results):
                self.visit(expression)

    def _is_name(self, target: ast.expr) -> bool:
        return isinstance(target, ast.Name) and target.id == self.name

    def _assigned(self, node: ast.Assign | ast.AnnAssign) -> None:
        if not self.is_used:
            self.found.append(node)

    def _refuse(self, node: ast.stmt | ast.expr, what: str) -> None:
        if not self.is_used and self.refusal is None:
            self.refusal = (
                f"line {node.lineno} {what}, so no value can be put there: give {self.name!r} its "
                f"value in a statement of its own, {self.name} = ..., before it is used"
            )
