"""A cell's text and its syntax tree, and the questions that rules ask of them."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.tree import Function, Loop, Tree, lines_of
from gpumem_magic.advice.work import COLUMN, Work
from gpumem_magic.trace.cell_flow import Parse, parse_cell
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Cell, Stack

__all__ = ["Code", "Function", "Loop"]

_IGNORE = re.compile(r"#\s*gpumem:\s*ignore(?:\[([\w\s,-]*)\])?")


class Code(Tree):
    """The text of a cell as typed, with its tree; IPython's own syntax reads as calls of the shell.

    tree: empty where the text is no Python. known: dotted names of what names mean, from
    `Names.known`; imports of the cell itself count as well. Lines count from 1, columns from 0.
    joined: makes one text of the cell and the earlier ones whose functions ran, with the trace by
    the lines of that; None where only its own code ran.
    """

    def __init__(
        self,
        cell: Cell,
        known: Mapping[str, str] | None = None,
        work: Work | None = None,
        parse: Parse = parse_cell,
    ) -> None:
        super().__init__(_parse(cell, parse), work)
        self.cell = cell
        self.source = cell.source
        self.lines = cell.source.split("\n")
        self._starts = _starts(self.lines)
        self._known = {**(known or {}), **dict(self._imports())}
        self.joined: Callable[[], tuple[Code, Trace] | None] = lambda: None

    def with_text(self, statement: ast.stmt, text: str) -> Code:
        """The cell with this text for a statement; empty where IPython's own syntax hides it."""
        (start, end), code = self.span(statement), self.cell.code
        old, source = self.source[start:end], f"{self.source[:start]}{text}{self.source[end:]}"
        if code is not None:
            code = code.replace(old, text) if code.count(old) == 1 else ""
        return Code(replace(self.cell, source=source, code=code), self._known, self.work)

    def place(self, line: int) -> str:
        """What a line of the text is called: "line 3"."""
        return f"line {line}"

    def stays_python(self, source: str) -> bool:
        """Whether another text of this cell can be parsed, where this one is plain Python."""
        self.work.spend(len(self))
        is_plain = self.cell.python.rstrip() == self.source.rstrip()
        return not is_plain or _parse(Cell(source, self.cell.filename)).body != []

    def offset(self, line: int, column: int) -> int:
        """The character of the text at a line and a column of the tree, which counts bytes; the
        end of the line where the tree's is longer, as it is of IPython's own syntax."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self._starts[line - 1] + min(column, len(text))

    def end_of_line(self, line: int) -> int:
        """The character behind a line, its line break."""
        return self._starts[line - 1] + len(self.lines[line - 1])

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """The characters of an expression, a statement or `name=value`, without decorators."""
        last, column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.offset(node.lineno, node.col_offset), self.offset(last, column)

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

    def lines_inside_strings(self) -> frozenset[int]:
        """Lines whose beginning may be part of a string, so that it must stay."""
        inside: set[int] = set()
        plain = (n for n in self.nodes(ast.Constant) if isinstance(n.value, (str, bytes)))
        for node in (*self.nodes(ast.JoinedStr), *plain):
            inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
        return frozenset(inside)

    def calls(self, *names: str, within: ast.AST | None = None) -> Sequence[ast.Call]:
        """Calls of functions of these dotted names, or methods of these names (".backward"), in
        the order of the text."""
        found = {call: None for name in names for call in self._part(self._calls[name], within)}
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    @functools.cached_property
    def _calls(self) -> Mapping[str, list[ast.Call]]:
        """By dotted name, and by the name of a method, with its dot."""
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.nodes(ast.Call):
            if dotted := self.dotted(call.func):
                found[dotted].append(call)
            if isinstance(call.func, ast.Attribute):
                found[f".{call.func.attr}"].append(call)
            if word := called(call):
                found[f"{word}()"].append(call)
        return found

    def calls_of(self, word: str) -> Sequence[ast.Call]:
        """Calls of any function or method that is written so: `word(...)` or `any.word(...)`."""
        return self._part(self._calls[f"{word}()"], None)

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

    def is_imported(self, name: str) -> bool:
        """Whether a name is a library's: a module, or what is imported from one."""
        return name in self._known

    def spelling(self, module: str, default: str = "") -> str:
        """How the notebook calls an imported module: "torch" for import torch; else `default`."""
        return next((name for name, what in self._known.items() if what == module), default)

    def _imports(self) -> Iterator[tuple[str, str]]:
        for node in self.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.split(".")[0]
                    yield alias.asname or root, alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"

    def is_under(self, node: ast.AST, *contexts: str) -> bool:
        """Whether a `with` of one of these, or a function with such a decorator, is around it."""
        return any(True for _ in self.contexts(node, *contexts))

    def contexts(self, node: ast.AST, *names: str) -> Iterator[tuple[ast.stmt, ast.expr]]:
        """Each `with` of one of these, and function with such a decorator, that is around a node,
        the innermost first, and the expression in it that says so."""
        for above in self.ancestors(node):
            if isinstance(above, (ast.With, ast.AsyncWith)):
                held = [item.context_expr for item in above.items]
            elif isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
                held = above.decorator_list
            else:
                continue
            for expression in held:
                called = expression.func if isinstance(expression, ast.Call) else expression
                if self.dotted(called) in names:
                    yield above, expression

    def born_in(self, node: ast.expr | ast.stmt, lives: Lifetimes) -> NDArray[np.bool_]:
        """Which storages were born while an expression or a statement of the cell ran, in functions
        that it called too."""
        by_line = self.once(_stacks_by_line, lives)
        lines = lines_of(node)
        rows = [row for line in lines for row in by_line.get(line, ())]
        here = np.zeros(len(lives.stacks) + 1, bool)
        here[rows] = True
        self.work.spend(len(rows) + COLUMN * (len(here) + len(lives)))
        return here[lives.stack]

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
        for node in self.nodes(ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            derived = any(self.text(base).endswith("Module") for base in node.bases)
            if derived or any(method.name == "forward" for method in methods):
                yield node

    def lines_in(self, *stacks: Stack) -> list[int]:
        """The lines of this text that were running, the innermost of a stack first."""
        own = self.cell.filename
        return [frame.line for stack in stacks for frame in stack if frame.filename == own]

    def _calling_line(self, stack: Stack, models: list[tuple[int, int]]) -> int:
        own = self.lines_in(stack)
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


def called(call: ast.Call) -> str:
    """The last word of what is called: "relu" of `relu(x)`, `x.relu()` and `F.relu(x)`."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _stacks_by_line(code: Code, lives: Lifetimes) -> Mapping[int, list[int]]:
    """Which stacks lead through each line of the cell."""
    found: dict[int, list[int]] = {}
    for row, stack in enumerate(lives.stacks):
        for line in set(code.lines_in(stack)):
            found.setdefault(line, []).append(row)
    return found


def _parse(cell: Cell, parse: Parse = parse_cell) -> ast.Module:
    # With other line breaks, lines would be counted otherwise than here.
    tree = parse(cell) if "\r" not in cell.source else None
    return tree or ast.Module(body=[], type_ignores=[])


def _starts(lines: list[str]) -> list[int]:
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line) + 1
    return starts
