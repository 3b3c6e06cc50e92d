"""Runs the code of a cell as a notebook does."""

from __future__ import annotations

import ast
import functools
import inspect
from types import CodeType
from typing import Any

from gpumem_magic.isolation.effects.waiting import run_coroutine


def execute(tree: ast.Module, filename: str, namespace: dict[str, Any], shows_last: bool) -> None:
    """Run a cell as a notebook does: the value of a last expression is shown and kept as `_`."""
    last = tree.body[-1] if shows_last and tree.body else None
    if isinstance(last, ast.Expr):
        call = ast.Call(ast.Name(_SHOW, ast.Load()), [last.value], [])
        shown = ast.copy_location(ast.Expr(call), last)
        tree = ast.fix_missing_locations(ast.Module([*tree.body[:-1], shown], []))
        namespace[_SHOW] = functools.partial(_show, namespace)
    _run(compile(tree, filename, "exec", _AWAIT, dont_inherit=True), namespace)


def _show(namespace: dict[str, Any], value: Any) -> None:
    if value is not None:
        namespace["_"] = value
        namespace["_oh"] = {**namespace.get("_oh", {}), "_": value}
        print(repr(value))  # noqa: T201 - it is captured


_SHOW = "__show__"
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _run(code: CodeType, namespace: dict[str, Any]) -> None:
    value = eval(code, namespace)
    if code.co_flags & inspect.CO_COROUTINE:
        run_coroutine(value)
