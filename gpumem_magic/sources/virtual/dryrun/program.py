"""Runs the code of a cell as a notebook does."""

from __future__ import annotations

import ast
import inspect
from types import CodeType
from typing import Any


def execute(tree: ast.Module, filename: str, namespace: dict[str, Any], shows_last: bool) -> None:
    """Run a cell as a notebook does: the value of a last expression is shown and kept as `_`."""
    body, last = list(tree.body), None
    if shows_last and body and isinstance(body[-1], ast.Expr):
        last = ast.Expression(body.pop().value)
    _run(compile(_module(body), filename, "exec", _AWAIT, dont_inherit=True), namespace)
    if last is None:
        return
    value = _run(compile(last, filename, "eval", _AWAIT, dont_inherit=True), namespace)
    if value is not None:
        namespace["_"] = value
        print(repr(value))  # noqa: T201 - it is captured


_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _module(body: list[ast.stmt]) -> ast.Module:
    return ast.Module(body, type_ignores=[])


def _run(code: CodeType, namespace: dict[str, Any]) -> Any:
    value = eval(code, namespace)
    if not code.co_flags & inspect.CO_COROUTINE:
        return value
    try:
        value.send(None)
    except StopIteration as finished:
        return finished.value
    value.close()
    raise NotImplementedError(
        "the cell waits for something in `await`, which a dry run cannot do: nothing goes on "
        "meanwhile. Predict the code without it"
    )
