"""Loops that wait for a value which nobody knows: they go on as long as something known lets them.

`finished = not has_more(...)` in a `while finished` keeps the answer it has gone on with so far,
and `if all_found.all(): break` does not break; what ends the loop is a bound that is known.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType


def answer_that_goes_on(frame: FrameType) -> bool | None:
    """What an unknown value has to be in the statement that `frame` is at for the loop around it to
    go on; None where the statement decides about no loop."""
    found = _controls(frame.f_code.co_filename).get(frame.f_lineno)
    if found is None:
        return None
    name, negated = found
    if not name:
        return negated
    now = frame.f_locals.get(name)
    return now is not negated if isinstance(now, bool) else None


@functools.lru_cache(maxsize=64)
def _controls(filename: str) -> dict[int, tuple[str, bool]]:
    """By line, the variables of `while` conditions that are assigned within their loops, and
    whether what is assigned is the negation of a value; without a name, conditions of a `break`."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, tuple[str, bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.While):
            names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
            for inner in ast.walk(node):
                if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                    found |= _lines(inner, inner.targets[0].id, names)
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break):
            last = node.test.end_lineno or node.lineno
            found |= dict.fromkeys(range(node.lineno, last + 1), ("", _is_negation(node.test)))
    return found


def _is_negation(value: ast.expr) -> bool:
    return isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)


def _lines(node: ast.Assign, name: str, names: set[str]) -> dict[int, tuple[str, bool]]:
    negated = _is_negation(node.value)
    if name not in names or not (negated or _makes_bool(node.value)):
        return {}
    last = node.end_lineno or node.lineno
    return dict.fromkeys(range(node.lineno, last + 1), (name, negated))


def _makes_bool(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "bool"
    )
