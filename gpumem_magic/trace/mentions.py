"""Which names a cell still needs from one of its lines on, as its source tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from gpumem_magic.events import Cell

_MAGIC = re.compile(r"^(\s*)(?:%|!|\?).*$", re.MULTILINE)
_ALL_NAMES = frozenset({"globals", "locals", "vars", "eval", "exec", "get_ipython"})


def mentioned_later(
    cell: Cell, line: int | None, cells: Mapping[str, Cell]
) -> frozenset[str] | None:
    """Names in the statement at `line`, in those after it, and in functions of any cell.

    The statement is the outermost, so of a loop all lines count. None where that cannot be told:
    there is no line, the source is no Python, or it asks for all names at once.
    """
    tree = _parse(cell.source)
    if tree is None or not line:
        return None
    names = set()
    for statement in tree.body:
        if (statement.end_lineno or 0) >= line:
            names |= set(_names(statement))
    for other in {cell.source, *(one.source for one in cells.values())}:
        parsed = _parse(other)
        names |= set(_names_in_functions(parsed)) if parsed else set()
    return None if names & _ALL_NAMES else frozenset(names)


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(_MAGIC.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _names(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id


def _names_in_functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _names(node)
