"""A syntax tree as a table in the order of its text: what lies where is looked up, not walked."""

from __future__ import annotations

import ast
import functools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from gpumem_magic.advice.work import Work
from gpumem_magic.trace.cell_flow import children

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_LEAVES: Final = (ast.Name, ast.Constant)

CHANGING = (
    *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "push", "put"),
    *("store", "remember", "save", "record", "log", "write", "put_nowait", "add_", "copy_"),
)
"""Methods that keep what they are given."""

Node = TypeVar("Node", bound=ast.AST)
Found = TypeVar("Found")


class Tree:
    """The nodes of a module in the order of its text, outer ones first, and indexes of them.

    work: counts the nodes that are looked at, and ends a rule that looks at too many. Questions
    about a part of the tree take the part as `within`; it must be of this tree.
    """

    def __init__(self, tree: ast.Module, work: Work | None = None) -> None:
        self.tree = tree
        self.work = work or Work()
        self._nodes, self._parents = _in_order(tree)
        self._place = {node: number for number, node in enumerate(self._nodes)}
        self._ends = list(range(1, len(self._nodes) + 1))
        for number in range(len(self._nodes) - 1, 0, -1):
            above = self._place[self._parents[self._nodes[number]]]
            self._ends[above] = max(self._ends[above], self._ends[number])
        self._remembered: dict[Callable[..., Any], Any] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def once(self, find: Callable[..., Found], *arguments: object) -> Found:
        """What `find(self, *arguments)` returns, remembered: all ask with the same arguments."""
        if find not in self._remembered:
            self._remembered[find] = find(self, *arguments)
        found: Found = self._remembered[find]
        return found

    def walk(self, within: ast.AST | None = None) -> Sequence[ast.AST]:
        """A node and all inside it, in the order of the text, outer ones first."""
        first, end = self._range(within)
        self.work.spend(end - first)
        return self._nodes[first:end]

    def nodes(self, *kinds: type[Node], within: ast.AST | None = None) -> Sequence[Node]:
        """The nodes of these kinds, in the order of the text."""
        lists = [found for kind, found in self._by_kind.items() if issubclass(kind, kinds)]
        parts = [self._part(found, within) for found in lists]
        if len(parts) == 1:
            return parts[0]
        return sorted((node for part in parts for node in part), key=self._place.__getitem__)

    def inside(self, node: ast.AST, outer: ast.AST) -> bool:
        """Whether a node is another, or lies in it."""
        first, end = self._range(outer)
        return first <= self._place[node] < end

    def part(self, nodes: Sequence[Node], within: ast.AST) -> Sequence[Node]:
        """Those of some nodes, given in the order of the text, that lie within a node."""
        return self._part(nodes, within)

    def above(self, nodes: Sequence[Node], node: ast.AST) -> Iterator[Node]:
        """Those of some nodes, given in the order of the text, that begin above another; the last
        first."""
        end = bisect_left(nodes, self._place[node], key=self._place.__getitem__)
        for number in range(end - 1, -1, -1):
            self.work.spend(1)
            yield nodes[number]

    def reads(self, name: str, within: ast.AST | None = None) -> Sequence[ast.Name]:
        """Where a name is read."""
        return self._part(self._names[name, True], within)

    def assigned(self, name: str, within: ast.AST | None = None) -> Iterator[ast.stmt]:
        """Statements that give a name a value: `name = ...`, `name += ...`, `for name in ...`."""
        for node in self._part(self._names[name, False], within):
            yield self.statement(node)

    def spoken(self, within: ast.AST | None = None) -> set[str]:
        """All names that are read or given a value."""
        return {node.id for node in self.nodes(ast.Name, within=within)}

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

    def statement_at(self, line: int | None) -> ast.stmt | None:
        """The innermost statement on a line, if one is known: of a loop, its header only."""
        return self._by_line.get(line or 0)

    def looped(self, line: int | None, elsewhere: str = "") -> tuple[ast.stmt | None, Loop | None]:
        """The innermost statement on a line, and the loop around it; neither where the cell that
        has the line is elsewhere, and named."""
        statement = None if elsewhere else self.statement_at(line)
        return statement, None if statement is None else self.loop(statement)

    def at_top(self, node: ast.AST) -> ast.stmt:
        """The statement of the module that a node is, or is part of."""
        outer = [n for n in (node, *self.ancestors(node)) if isinstance(n, ast.stmt)]
        return outer[-1]

    @staticmethod
    def first_line(statement: ast.stmt) -> int:
        """The line that a statement begins on, decorators included."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        return min([statement.lineno, *(d.lineno for d in decorators)])

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements of the block that a statement stands in, itself among them."""
        return self._blocks[statement][0]

    def index(self, statement: ast.stmt) -> int:
        """The place of a statement in its block."""
        return self._blocks[statement][1]

    def beside(self, node: ast.AST, statement: ast.stmt) -> int | None:
        """The place, in the block of a statement, of what holds a node; None where nothing does."""
        block = self.block(statement)
        for above in (node, *self.ancestors(node)):
            if isinstance(above, ast.stmt) and self._blocks[above][0] is block:
                return self._blocks[above][1]
        return None

    def before(self, statement: ast.stmt) -> Sequence[ast.stmt]:
        """The statements of its block above a statement."""
        block, place = self._blocks[statement]
        self.work.spend(place)
        return block[:place]

    def after(self, statement: ast.stmt, until: ast.stmt | None = None) -> Sequence[ast.stmt]:
        """The statements of its block below a statement, those above another one if given."""
        block, place = self._blocks[statement]
        end = len(block) if until is None else self.beside(until, statement)
        self.work.spend(max((end or 0) - place, 0))
        return block[place + 1 : end or 0]

    def loop(self, node: ast.AST) -> Loop | None:
        """The innermost loop around a node, within its function."""
        for above in self.ancestors(node):
            if isinstance(above, LOOPS):
                return above
            if isinstance(above, (*FUNCTIONS, ast.Lambda)):
                return None
        return None

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function that a node is inside of."""
        for above in self.ancestors(node):
            if isinstance(above, FUNCTIONS):
                return above
        return None

    def is_from_around(self, read: ast.Name, scope: Function | None) -> bool:
        """Whether a function inside of a scope, None for the module's, reads a variable of that."""
        function = self.function(read)
        if function is scope or function is None:
            return False
        return read.id not in parameters(function) and not any(self.assigned(read.id, function))

    def _range(self, within: ast.AST | None) -> tuple[int, int]:
        first = 0 if within is None else self._place[within]
        return first, self._ends[first]

    def _part(self, found: Sequence[Node], within: ast.AST | None) -> Sequence[Node]:
        """Those of the nodes, which lie in the order of the text, that are within a node."""
        if within is not None:
            first, end = self._range(within)
            place = self._place.__getitem__
            found = found[bisect_left(found, first, key=place) : bisect_left(found, end, key=place)]
        self.work.spend(len(found))
        return found

    @functools.cached_property
    def _by_kind(self) -> Mapping[type[ast.AST], list[Any]]:
        found: dict[type[ast.AST], list[ast.AST]] = {}
        for node in self._nodes:
            found.setdefault(type(node), []).append(node)
        return found

    @functools.cached_property
    def _names(self) -> Mapping[tuple[str, bool], list[ast.Name]]:
        """By name, and whether it is read."""
        found: dict[tuple[str, bool], list[ast.Name]] = defaultdict(list)
        for node in self._by_kind.get(ast.Name, ()):
            found[node.id, isinstance(node.ctx, ast.Load)].append(node)
        return found

    @functools.cached_property
    def _by_line(self) -> Mapping[int, ast.stmt]:
        found: dict[int, ast.stmt] = {}
        for node in self._nodes:
            if isinstance(node, ast.stmt):  # the outer ones come first
                last = node.end_lineno or node.lineno
                found.update(dict.fromkeys(range(self.first_line(node), last + 1), node))
        return found

    @functools.cached_property
    def _blocks(self) -> Mapping[ast.stmt, tuple[list[ast.stmt], int]]:
        found: dict[ast.stmt, tuple[list[ast.stmt], int]] = {}
        for node in self._nodes:
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    found.update((each, (block, place)) for place, each in enumerate(block))
        return found


def header(statement: ast.stmt) -> list[ast.expr]:
    """The expressions that a statement itself evaluates: of a loop, what it loops over."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.While, ast.If)):
        return [statement.test]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        return [statement.value] if statement.value is not None else []
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Try, ast.Match)):
        return []
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def targets(statement: ast.stmt) -> list[ast.expr]:
    """What a statement assigns to, or changes by a method that keeps its arguments."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        return [statement.target]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [i.optional_vars for i in statement.items if i.optional_vars is not None]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and called.attr in CHANGING:
            return [called.value]
    return []


def plain_names(target: ast.expr) -> Iterator[str]:
    """The names that an assignment to this target binds anew."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from plain_names(item)
    elif isinstance(target, ast.Starred):
        yield from plain_names(target.value)


def defined(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or whose objects it changes."""
    found = {name for target in targets(statement) if (name := root(target))}
    found.update(name for target in targets(statement) for name in plain_names(target))
    for node in header(statement):
        found.update(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
    return found


def root(node: ast.expr) -> str:
    """`a` of `a.b[0].c`; "" where it begins with something else."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters."""
    all_of = function.args
    named = [*all_of.posonlyargs, *all_of.args, *all_of.kwonlyargs]
    return [a.arg for a in (*named, all_of.vararg, all_of.kwarg) if a is not None]


def lines_of(node: ast.expr | ast.stmt) -> range:
    """The lines that an expression or a statement stands on; those of decorators are not among
    them."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _in_order(tree: ast.Module) -> tuple[list[ast.AST], dict[ast.AST, ast.AST]]:
    """The nodes in the order of the text, and what each is right inside of."""
    found: list[ast.AST] = []
    above: dict[ast.AST, ast.AST] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, _LEAVES):
            continue
        inside = children(node)
        above.update(dict.fromkeys(inside, node))
        waiting += reversed(inside)
    return found, above
