"""Loops that wait for a value which nobody knows: they go on as long as something known lets them.

`finished = not has_more(...)` in a `while` that asks for `finished` keeps the answer with which the
loop has gone on so far; what ends it is a bound whose value is known.
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
    now = frame.f_locals.get(name)
    return now is not negated if isinstance(now, bool) else None


@functools.lru_cache(maxsize=64)
def _controls(filename: str) -> dict[int, tuple[str, bool]]:
    """By line, the variables of `while` conditions that are assigned within their loops, and
    whether what is assigned is the negation of a value."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, tuple[str, bool]] = {}
    for loop in ast.walk(tree):
        if isinstance(loop, ast.While):
            names = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
            for node in ast.walk(loop):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found |= _lines(node, node.targets[0].id, names)
    return found


def _lines(node: ast.Assign, name: str, names: set[str]) -> dict[int, tuple[str, bool]]:
    negated = isinstance(node.value, ast.UnaryOp) and isinstance(node.value.op, ast.Not)
    if name not in names or not (negated or _makes_bool(node.value)):
        return {}
    last = node.end_lineno or node.lineno
    return dict.fromkeys(range(node.lineno, last + 1), (name, negated))


def _makes_bool(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "bool"
    )
