"""Finds weights that each forward pass computes of an object's attributes alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.tree import FUNCTIONS, Function, header, lines_of, parameters
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Phase

_ASKS = frozenset({"dtype", "device", "shape"})
"""What may be asked of the input without a look at its numbers."""

Computed = tuple[tuple[ast.expr, NDArray[np.bool_]], ...]
"""Expressions, each with the storages that it gave in all forward passes."""


def computed_weights(code: Code, lives: Lifetimes) -> Computed:
    """Expressions of methods whose results have the shapes of weights; one of each statement."""
    found: dict[ast.stmt, tuple[ast.expr, NDArray[np.bool_]]] = {}
    values = [*_computed(code)]
    made = like_weights(lives) & (lives.born == Phase.FORWARD) if values else np.zeros(0, bool)
    for value in values if made.any() else ():
        own = made & _made_on(code, lives, lines_of(value))
        if own.any() and _are_weights(code, lives, value, own):
            found.setdefault(code.statement(value), (value, own))
    return tuple(found.values())


def _made_on(code: Code, lives: Lifetimes, lines: range) -> NDArray[np.bool_]:
    """Which storages the text's innermost function made on these lines."""
    inner = (next(iter(code.lines_in(stack)), 0) for stack in lives.stacks)
    return np.array([*(line in lines for line in inner), False], bool)[lives.stack]


def like_weights(lives: Lifetimes) -> NDArray[np.bool_]:
    """What is as a matrix of weights in shape, and neither that nor kept as its gradient."""
    weights = lives.of(Category.PARAMETER, Category.BUFFER)
    others = weights | lives.of(Category.GRADIENT, Category.OPTIMIZER_STATE)
    shapes = {lives.tensor(row)[0] for row in np.flatnonzero(weights).tolist()}
    shapes = {shape for shape in shapes if shape and len(shape) > 1}
    made = (lives.birth >= 0) & ~others & (lives.stack >= 0)
    rows = [row for row in np.flatnonzero(made).tolist() if lives.tensor(row)[0] in shapes]
    return lives.rows(rows)


def _are_weights(code: Code, lives: Lifetimes, value: ast.expr, own: NDArray[np.bool_]) -> bool:
    """Whether these are what the expression gives: all that its statement computes, or nothing else
    is as large; outputs of as many rows as the layer has would look alike."""
    if value in header(code.statement(value)):
        return True
    others = (lives.born == Phase.FORWARD) & ~code.born_in(value, lives)
    others &= ~lives.of(Category.PARAMETER, Category.BUFFER, Category.GRADIENT)
    others &= ~lives.of(Category.OPTIMIZER_STATE)
    return not np.isin(lives.size[others], lives.size[own]).any()


def _computed(code: Code) -> Iterator[ast.expr]:
    """The largest expressions in methods that compute something of their object's attributes."""
    for function in code.nodes(*FUNCTIONS):
        of_class = isinstance(code.parent(function), ast.ClassDef)
        if not of_class or not isinstance(function, FUNCTIONS) or function.name == "__init__":
            continue
        if parameters(function):
            yield from _in_method(code, function)


def _in_method(code: Code, function: Function) -> Iterator[ast.expr]:
    own = {parameters(function)[0]}
    for statement in code.nodes(ast.stmt, within=function):
        for value in header(statement):
            if not isinstance(statement, FUNCTIONS):
                yield from _largest(code, value, own)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _of_weights(value, own):
                own.add(name)


def _largest(code: Code, value: ast.expr, own: set[str]) -> Iterator[ast.expr]:
    code.work.spend(1)
    if isinstance(value, ast.BinOp | ast.Call) and _of_weights(value, own):
        read = {n.attr for n in code.nodes(ast.Attribute, within=value)}
        if not read & code.once(_states):
            yield value
        return
    for child in ast.iter_child_nodes(value):
        inner = child.value if isinstance(child, ast.keyword) else child
        if isinstance(inner, ast.expr):
            yield from _largest(code, inner, own)


def _states(code: Code) -> set[str]:
    """Attributes that methods give new values as they run: no weights, whatever their shape."""
    given = (n for n in code.nodes(ast.Attribute) if isinstance(n.ctx, ast.Store))
    within = ((n, code.function(n)) for n in given)
    return {n.attr for n, function in within if function and function.name != "__init__"}


def _of_weights(value: ast.expr, own: set[str]) -> bool:
    """Whether an expression reads these names, and nothing else but functions and constants."""
    read: list[bool] = []
    waiting: list[ast.AST] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute) and node.attr in _ASKS:
            continue
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and _begins(node.func) in own
            waiting += [*([node.func] if method else []), *node.args]
            waiting += [keyword.value for keyword in node.keywords]
        elif isinstance(node, ast.Name):
            read.append(node.id in own)
        else:
            waiting += ast.iter_child_nodes(node)
    return bool(read) and all(read)


def _begins(node: ast.expr) -> str:
    """The name that an expression begins with."""
    while not isinstance(node, ast.Name):
        inner = next((n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)), None)
        if inner is None:
            return ""
        node = inner
    return node.id
