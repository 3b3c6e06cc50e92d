"""Statements that go by a value which nobody knows: what it has to be for the program to go on.

Loops go on as long as something known lets them: `finished = not has_more(...)` in a
`while finished` keeps its answer, `if all_found.all(): break` does not break. Checks find nothing.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from gpumem_magic.sources.objects.namespaces import locals_of
from gpumem_magic.sources.stacks.frames import parsed

_ENDINGS = (ast.Break, ast.Return)


class _Control(NamedTuple):
    """How a statement decides whether to go on. name: of the variable that it assigns, "" for a
    test. truth, compared: what its values, and its comparisons, have to be to go on, None where
    some have to be true and others false; of an assignment, whether it negates them. checks: the
    program fails otherwise, while other statements end a loop."""

    name: str
    truth: bool | None
    compared: bool | None
    checks: bool = False


def answer_that_goes_on(frame: FrameType, *, compares: bool = False) -> bool | None:
    """What an unknown value has to be in the statement that `frame` is at for the loop around it,
    or the program, to go on; None where it decides about neither. compares: the value is a
    comparison's."""
    found = _control_at(frame)
    if found is None:
        return None
    if not found.name:
        return found.compared if compares else found.truth
    now = locals_of(frame).get(found.name)
    return now is not found.truth if isinstance(now, bool) else None


def is_check(frame: FrameType) -> bool:
    """Whether the statement that `frame` is at fails where a value is not as it has to be."""
    found = _control_at(frame)
    return found is not None and found.checks


def _control_at(frame: FrameType) -> _Control | None:
    return _controls(frame.f_code.co_filename).get(frame.f_lineno)


@functools.lru_cache(maxsize=64)
def _controls(filename: str) -> dict[int, _Control]:
    """By line: the tests of `while`, of a `break` and of a `return` within a loop, what the
    variables in the test of a `while` are assigned within it, and checks."""
    tree = parsed(filename)
    if tree is None:
        return {}
    is_lbfgs = filename.replace("\\", "/").endswith("torch/optim/lbfgs.py")
    return _checks(tree) | _of_loops(tree) | (_additions(tree) if is_lbfgs else {})


def _additions(tree: ast.Module) -> dict[int, _Control]:
    """Tests of an `if` that adds to a list: LBFGS remembers a step if it is of any use."""
    found: dict[int, _Control] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(map(_adds, node.body)):
            found |= _lines(node.test, _test(node.test, goes_on=True))
    return found


def _adds(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "append"
    )


def _checks(tree: ast.Module) -> dict[int, _Control]:
    """Assertions, and the tests of an `if` with one way that ends in a `raise`."""
    found: dict[int, _Control] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found |= _lines(node.test, _test(node.test, goes_on=True)._replace(checks=True))
        elif isinstance(node, ast.If) and _raises(node.body) is not _raises(node.orelse):
            control = _test(node.test, goes_on=_raises(node.orelse))
            found |= _lines(node.test, control._replace(checks=True))
    return found


def _raises(statements: list[ast.stmt]) -> bool:
    return bool(statements) and isinstance(statements[-1], ast.Raise)


def _of_loops(tree: ast.Module) -> dict[int, _Control]:
    found: dict[int, _Control] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.While, ast.For)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.If) and isinstance(inner.body[-1], _ENDINGS):
                    found |= _lines(inner.test, _test(inner.test, goes_on=False))
        if isinstance(node, ast.While):
            found |= _lines(node.test, _test(node.test, goes_on=True))
            names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
            for inner in ast.walk(node):
                if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                    name, negated = inner.targets[0].id, _is_negation(inner.value)
                    if name in names and (negated or _makes_bool(inner.value)):
                        found |= _lines(inner, _Control(name, negated, None))
    return found


def _lines(node: ast.stmt | ast.expr, control: _Control) -> dict[int, _Control]:
    return dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), control)


def _test(test: ast.expr, *, goes_on: bool) -> _Control:
    """goes_on: whether the loop goes on where the test is true."""
    parts = [each for each in _parts(test, goes_on) if not _compares_comparisons(each[0])]
    compared = {wanted for part, wanted in parts if isinstance(part, ast.Compare)}
    truth = {wanted for part, wanted in parts if not isinstance(part, ast.Compare)} or compared
    return _Control("", _only(truth), _only(compared))


def _only(found: set[bool]) -> bool | None:
    return min(found) if len(found) == 1 else None


def _parts(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    """What a test consists of, and what each part has to be for the whole to be `wanted`."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value, wanted)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not wanted)
    else:
        yield test, wanted


def _compares_comparisons(part: ast.expr) -> bool:
    """`(a > b) == c`: which of them has to be what is not told."""
    return isinstance(part, ast.Compare) and any(
        isinstance(inner, ast.Compare) for inner in ast.walk(part) if inner is not part
    )


def _is_negation(value: ast.expr) -> bool:
    return isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)


def _makes_bool(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "bool"
    )
