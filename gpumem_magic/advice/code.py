"""A cell's text and its syntax tree, and the questions that rules ask of them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.cell_flow import parse_cell
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Cell, Stack

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_IGNORE = re.compile(r"#\s*gpumem:\s*ignore(?:\[([\w\s,-]*)\])?")


class Code:
    """The text of a cell as typed, with its tree; IPython's own syntax reads as calls of the shell.

    tree: empty where the text is no Python. known: dotted names of what names mean, from
    `Names.known`; imports of the cell itself count as well. Lines count from 1, columns from 0.
    """

    def __init__(self, cell: Cell, known: Mapping[str, str] | None = None) -> None:
        self.cell = cell
        self.source = cell.source
        self.lines = cell.source.split("\n")
        self.tree = _parse(cell)
        self._starts = _starts(self.lines)
        self._known = {**(known or {}), **dict(_imports(self.tree))}
        self._parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self._inside: dict[ast.AST, tuple[ast.AST, ...]] = {}

    def walk(self, within: ast.AST | None = None) -> tuple[ast.AST, ...]:
        """A node and all inside it, outer ones first, as `ast.walk` has them; remembered."""
        node = within or self.tree
        if node not in self._inside:
            self._inside[node] = tuple(ast.walk(node))
        return self._inside[node]

    def offset(self, line: int, column: int) -> int:
        """The character of the text at a line and a column of the tree, which counts bytes; the
        end of the line where the tree's is longer, as it is of IPython's own syntax."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self._starts[line - 1] + min(column, len(text))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The characters of an expression or a statement; decorators are not part of it."""
        last, column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.offset(node.lineno, node.col_offset), self.offset(last, column)

    def span_of_keyword(self, keyword: ast.keyword) -> tuple[int, int]:
        """The characters of `name=value`."""
        last, column = keyword.end_lineno or keyword.lineno, keyword.end_col_offset or 0
        return self.offset(keyword.lineno, keyword.col_offset), self.offset(last, column)

    def end(self, node: ast.expr) -> int:
        """The character behind an expression."""
        return self.span(node)[1]

    def after_parentheses(self, node: ast.expr, call: ast.Call) -> int:
        """The character behind an argument of the call, and the parentheses around it."""
        at, last = self.span(node)[1], self.span(call)[1] - 1
        opened = self.source[: self.span(node)[0]].rstrip()
        while opened.endswith("(") and len(opened) - 1 > self.span(call.func)[1]:
            closing = self.source.find(")", at, last)
            if closing < 0 or self.source[at:closing].strip():
                break
            at, opened = closing + 1, opened[:-1].rstrip()
        return at

    def text(self, node: ast.expr | ast.stmt) -> str:
        """The text of an expression or a statement."""
        start, end = self.span(node)
        return self.source[start:end]

    def indentation(self, line: int) -> str:
        """The white space that a line begins with."""
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]

    def first_line(self, statement: ast.stmt) -> int:
        """The line that a statement begins on, decorators included."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        return min([statement.lineno, *(d.lineno for d in decorators)])

    def lines_inside_strings(self) -> frozenset[int]:
        """Lines whose beginning may be part of a string, so that it must stay."""
        inside: set[int] = set()
        for node in self.walk():
            if isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
            ):
                inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
        return frozenset(inside)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What the node is right inside of; None for the tree itself."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What the node is inside of, the innermost first."""
        above = self._parents.get(node)
        while above is not None:
            yield above
            above = self._parents.get(above)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that the node is, or is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next(above for above in self.ancestors(node) if isinstance(above, ast.stmt))

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement on a line: of a loop, its header only."""
        found = None
        for node in self.walk():
            if isinstance(node, ast.stmt) and self.first_line(node) <= line <= (
                node.end_lineno or node.lineno
            ):
                found = node  # walk comes to the outer ones first
        return found

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements of the block that a statement stands in, itself among them."""
        above = self._parents[statement]
        for _, value in ast.iter_fields(above):
            if isinstance(value, list) and statement in value:
                return value
        return [statement]

    def loop(self, node: ast.AST) -> Loop | None:
        """The innermost loop around a node, within its function."""
        for above in self.ancestors(node):
            if isinstance(above, (ast.For, ast.AsyncFor, ast.While)):
                return above
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return None
        return None

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function that a node is inside of."""
        for above in self.ancestors(node):
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return above
        return None

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Calls of functions of these dotted names, or methods of these names (".backward"), in
        the order of the text."""
        found = [
            node
            for node in self.walk(within)
            if isinstance(node, ast.Call) and self.is_one_of(node.func, names)
        ]
        yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def is_one_of(self, function: ast.expr, names: tuple[str, ...]) -> bool:
        """Whether an expression means one of these: "torch.load", or any ".backward"."""
        dotted = self.dotted(function)
        return any(
            dotted == name or (isinstance(function, ast.Attribute) and name == f".{function.attr}")
            for name in names
        )

    def dotted(self, node: ast.expr) -> str:
        """The full name of `nn.Linear` or `F.relu` ("torch.nn.Linear"); "" for what is no name."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (value := self.dotted(node.value)):
            return f"{value}.{node.attr}"
        return ""

    def spelling(self, module: str, default: str = "") -> str:
        """How the notebook calls an imported module: "torch" for import torch; else `default`."""
        return next((name for name, what in self._known.items() if what == module), default)

    def is_under(self, node: ast.AST, *contexts: str) -> bool:
        """Whether a `with` of one of these, or a function with such a decorator, is around it."""
        for above in self.ancestors(node):
            if isinstance(above, (ast.With, ast.AsyncWith)):
                held = [item.context_expr for item in above.items]
            elif isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
                held = above.decorator_list
            else:
                continue
            if any(self._is_context(expression, contexts) for expression in held):
                return True
        return False

    def _is_context(self, expression: ast.expr, contexts: tuple[str, ...]) -> bool:
        called = expression.func if isinstance(expression, ast.Call) else expression
        return self.dotted(called) in contexts

    def assigned(self, name: str) -> Iterator[ast.stmt]:
        """Statements that give a name a value: `name = ...`, `name += ...`, `for name in ...`."""
        for node in self.walk():
            if (
                isinstance(node, ast.Name)
                and node.id == name
                and not isinstance(node.ctx, ast.Load)
            ):
                yield self.statement(node)

    def reads(self, name: str, within: ast.AST | None = None) -> Iterator[ast.Name]:
        """Where a name is read."""
        for node in self.walk(within):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                yield node

    def born_in(self, node: ast.expr | ast.stmt, lives: Lifetimes) -> NDArray[np.bool_]:
        """Which storages were born while an expression or a statement of the cell ran, in functions
        that it called too."""
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return lives.born_under(self.cell.filename, lines)

    def calling_lines(self, lives: Lifetimes) -> NDArray[np.int32]:
        """For each storage the line of the cell that called a model, rather than the line inside
        the model's own class; 0 where none is known, -1 for what is older than the cell."""
        models = [(node.lineno, node.end_lineno or 0) for node in self._model_classes()]
        if not models:
            return lives.line
        by_stack = [self._calling_line(stack, models) for stack in lives.stacks]
        called = np.array([*by_stack, 0], np.int32)[lives.stack]
        return np.where(called > 0, called, lives.line)

    def _model_classes(self) -> Iterator[ast.ClassDef]:
        for node in self.walk():
            if isinstance(node, ast.ClassDef):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                if any(method.name == "forward" for method in methods):
                    yield node

    def _calling_line(self, stack: Stack, models: list[tuple[int, int]]) -> int:
        own = [frame.line for frame in stack if frame.filename == self.cell.filename]
        outside = (n for n in own if not any(first <= n <= last for first, last in models))
        return next(outside, own[0] if own else 0)

    @functools.cached_property
    def ignored(self) -> Mapping[int, frozenset[str]]:
        """By line, the rules that `# gpumem: ignore[rule]` silences there; "*" for all of them."""
        found = {}
        for number, text in enumerate(self.lines, 1):
            if match := _IGNORE.search(text):
                rules = {name.strip() for name in (match[1] or "*").split(",")}
                found[number] = frozenset(rules - {""})
        return found

    def ignores(self, rule: str, line: int | None) -> bool:
        """Whether a comment silences the rule: on the line, the one above it, or the first one."""
        places = {1} | ({line, line - 1} if line else set())
        return any(self.ignored.get(place, frozenset()) & {rule, "*"} for place in places)


def _parse(cell: Cell) -> ast.Module:
    # With other line breaks, lines would be counted otherwise than here.
    tree = parse_cell(cell) if "\r" not in cell.source else None
    return tree or ast.Module(body=[], type_ignores=[])


def _starts(lines: list[str]) -> list[int]:
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line) + 1
    return starts


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.split(".")[0],
                    (alias.name if alias.asname else alias.name.split(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
