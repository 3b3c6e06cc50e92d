"""Loops that wait for a value which nobody knows: they go on as long as something known lets them.

`finished = not has_more(...)` in a `while finished` keeps the answer it has gone on with so far,
and `if all_found.all(): break` does not break; what ends the loop is a bound that is known.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

_ENDINGS = (ast.Break, ast.Return)


class _Control(NamedTuple):
    """How a statement decides about a loop. name: of the variable that it assigns, "" for a test.
    truth, compared: what its values, and its comparisons, have to be for the loop to go on, None
    where some have to be true and others false; of an assignment, whether it negates them."""

    name: str
    truth: bool | None
    compared: bool | None


def answer_that_goes_on(frame: FrameType, *, compares: bool = False) -> bool | None:
    """What an unknown value has to be in the statement that `frame` is at for the loop around it to
    go on; None where the statement decides about no loop. compares: the value is a comparison's."""
    found = _controls(frame.f_code.co_filename).get(frame.f_lineno)
    if found is None:
        return None
    if not found.name:
        return found.compared if compares else found.truth
    now = frame.f_locals.get(found.name)
    return now is not found.truth if isinstance(now, bool) else None


@functools.lru_cache(maxsize=64)
def _controls(filename: str) -> dict[int, _Control]:
    """By line: the tests of `while`, of a `break` and of a `return` within a loop, and what the
    variables in the test of a `while` are assigned within it."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
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
    parts = list(_parts(test, goes_on))
    compared = {wanted for part, wanted in parts if isinstance(part, ast.Compare)}
    truth = {wanted for part, wanted in parts if not isinstance(part, ast.Compare)} or compared
    return _Control("", *(min(each) if len(each) == 1 else None for each in (truth, compared)))


def _parts(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    """What a test consists of, and what each part has to be for the whole to be `wanted`."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value, wanted)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not wanted)
    else:
        yield test, wanted


def _is_negation(value: ast.expr) -> bool:
    return isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)


def _makes_bool(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "bool"
    )
