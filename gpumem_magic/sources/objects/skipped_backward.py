"""What keeps the functions that an error went through from going backward: a test of the mode that
they run in, such as `if train:`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any, Final, TypeGuard

from gpumem_magic.sources.objects.contents import fields
from gpumem_magic.sources.objects.namespaces import is_librarys, locals_of
from gpumem_magic.sources.stacks.frames import parsed, went_through
from gpumem_magic.values.names import SkippedBackward

_MODE: Final = re.compile(
    r"train|phase|mode|split|stage|optim|\bopt\b|eval|valid|test|infer", re.IGNORECASE
)
"""In tests that stay as they are while a function runs; others may let a later pass go backward."""

_PLAIN: Final = (bool, str, type(None))
_LEAVES: Final = (ast.Continue, ast.Return, ast.Break, ast.Raise)
_MOST: Final = 100
_OPPOSITES: Final = ((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
_OPPOSITE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    one: other for pair in _OPPOSITES for one, other in (pair, pair[::-1])
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_APART = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)


class _UnknownError(Exception):
    pass


def find_skipped(error: BaseException | None) -> SkippedBackward | None:
    """The innermost test, where no call of backward() is left that would still be reached in the
    user's functions. Nothing of the user's runs."""
    found = None
    tree_of = functools.cache(parsed)
    for frame, line in islice(went_through(error), _MOST):
        if is_librarys(frame):
            continue
        tree = tree_of(frame.f_code.co_filename)
        for call, block in _coming(tree, frame, line) if tree else ():
            test = _what_skips(frame, line, call, block)
            if test is None:
                return None
            name = frame.f_code.co_name
            trains = _trains(test, _holds(frame, test) is True)
            found = SkippedBackward("" if name == "<module>" else name, ast.unparse(test), trains)
    return found


def _trains(test: ast.expr, skips: bool) -> str:
    """The truth that goes backward, as it can be written, where the test being `skips` does not."""
    if skips and isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _trains(test.operand, skips=False)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if skips and (other := _OPPOSITE.get(type(test.ops[0]))):
            test = ast.Compare(test.left, [other()], test.comparators)
            skips = False
        if not skips:
            return ast.unparse(test)
    text = ast.unparse(test)
    return f"not ({text})" if skips else f"bool({text})"


def _coming(
    tree: ast.Module, frame: FrameType, line: int
) -> Iterator[tuple[ast.Call, list[ast.AST]]]:
    """Calls of backward() below the line that runs, in the frame's own function, each with what it
    lies in, the innermost last."""
    waiting: list[tuple[ast.AST, list[ast.AST]]] = [(_function(tree, frame), [])]
    while waiting:
        node, above = waiting.pop()
        if _goes_backward(node) and node.lineno > line:
            yield node, above
        inside = (n for n in ast.iter_child_nodes(node) if not isinstance(n, _APART))
        waiting += [(child, [*above, node]) for child in inside]


def _goes_backward(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "backward"


def _function(tree: ast.Module, frame: FrameType) -> ast.AST:
    """The definition that the frame runs; the whole text for what is no function."""
    name, first = frame.f_code.co_name, frame.f_code.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and node.name == name:
            begins = [node.lineno, *(each.lineno for each in node.decorator_list)]
            if min(begins) == first:
                return node
    return tree


def _what_skips(
    frame: FrameType, line: int, call: ast.Call, above: list[ast.AST]
) -> ast.expr | None:
    """The test by which the call is not reached; None where it may be."""
    for place, node in enumerate(above):
        inner = above[place + 1] if place + 1 < len(above) else call
        if isinstance(node, ast.If) and _other_branch(frame, node, inner):
            return node.test
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            for other in block[: block.index(inner)] if block and inner in block else ():
                if not (isinstance(other, ast.If) and isinstance(other.body[-1], _LEAVES)):
                    continue
                if other.lineno > line and _holds(frame, other.test):
                    return other.test
    return None


def _other_branch(frame: FrameType, node: ast.If, inner: ast.AST) -> bool:
    return inner is not node.test and _holds(frame, node.test) is (inner in node.orelse)


def _holds(frame: FrameType, test: ast.expr) -> bool | None:
    """Whether a test of the mode is true now; None where that is not known."""
    if not _MODE.search(ast.unparse(test)):
        return None
    try:
        return bool(_value(frame, test))
    except _UnknownError:
        return None


def _value(frame: FrameType, node: ast.expr) -> bool | str | None:
    """The value of a test that is made of plain ones."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value(frame, node.operand)
    if isinstance(node, ast.BoolOp):
        values = [_value(frame, value) for value in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(frame, node)
    found: bool | str | None = _found(frame, node)
    if type(found) not in _PLAIN:
        raise _UnknownError
    return found


def _compared(frame: FrameType, node: ast.Compare) -> bool:
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(operator, ast.Is | ast.IsNot):
        same = _found(frame, left) is _found(frame, right)
        return same is isinstance(operator, ast.Is)
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(
        right, ast.Tuple | ast.List | ast.Set
    ):
        inside = _value(frame, left) in [_value(frame, each) for each in right.elts]
        return inside is isinstance(operator, ast.In)
    if isinstance(operator, ast.Eq | ast.NotEq):
        equal = _value(frame, left) == _value(frame, right)
        return equal is isinstance(operator, ast.Eq)
    raise _UnknownError


def _found(frame: FrameType, node: ast.expr) -> Any:
    """What a name, a constant or an attribute means; no property is asked."""
    if isinstance(node, ast.Constant):
        return node.value
    tables: list[Any] = []
    if isinstance(node, ast.Name):
        tables = [locals_of(frame), frame.f_globals]
    elif isinstance(node, ast.Attribute):
        held = fields(_found(frame, node.value))
        tables = [held, held.get("_modules") or {}]
    name = getattr(node, "id", getattr(node, "attr", ""))
    for table in tables:
        if name in table:
            return table[name]
    raise _UnknownError
