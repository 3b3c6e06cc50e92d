"""What a source tells by ast: how often its lines can run, which names it needs from a line on."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import symtable
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpumem_magic.sources.stacks.callsite import body_of
from gpumem_magic.values.recording import Cell, Frame, Stack

Parse = Callable[[Cell], ast.Module | None]
"""`parse_cell`, or one that remembers its answers."""


class Repeats(Enum):
    """Why the lines of a region run more than once."""

    NEVER = "the top level of the cell"
    LOOP = "a for or while statement"
    INLINE = "a comprehension or a lambda"
    CALL = "the body of a function"


@dataclass(frozen=True, slots=True)
class Region:
    """Lines that repeat together.

    always: it runs in every pass of its parent, not under a condition. straight: nothing in it can
    leave a pass halfway, save an exception.
    """

    repeats: Repeats
    parent: int
    always: bool
    straight: bool


@dataclass(frozen=True, slots=True)
class Place:
    """The innermost region of a line. always: in each of its passes. body: not in its header."""

    region: int
    always: bool
    body: bool


@dataclass(frozen=True, slots=True)
class Flow:
    """The regions of a source, the top level first, and the place of each of its lines."""

    regions: tuple[Region, ...]
    places: Mapping[int, Place]

    def loops(self, line: int) -> bool:
        """Whether a loop or a comprehension repeats the line within its function."""
        place = self.places.get(line)
        return place is None or self.regions[place.region].repeats in _LOOPS

    def around(self, line: int) -> Iterator[int]:
        """The regions in whose every pass the line runs, perhaps several times, the inner first."""
        place = self.places.get(line)
        inner, always = (place.region, place.always) if place else (-1, False)
        while inner >= 0 and always:
            yield inner
            inner, always = self.regions[inner].parent, self.regions[inner].always


def read_flow(tree: ast.Module | None) -> Flow | None:
    """Read a cell's loops and functions; None where it could not be parsed."""
    if tree is None:
        return None
    reader = _Reader([Region(Repeats.NEVER, -1, True, True)])
    reader.read(tree.body, Place(0, True, True))
    return Flow(tuple(reader.regions), reader.places)


def parse_cell(cell: Cell) -> ast.Module | None:
    """The syntax tree of a cell, or of its body below a cell magic; None where it cannot be parsed.

    Lines are those of the cell as typed.
    """
    return _parsed(python_of(cell))


def python_of(cell: Cell) -> str:
    """The text of a cell, or of its body below a cell magic, as Python with the same lines."""
    inside = body_of(cell.source)
    if inside is not None:
        _, first, body = inside
        return "\n" * (first - 1) + body
    return cell.python


def _parsed(text: str) -> ast.Module | None:
    # Python warned of it when the cell ran; `catch_warnings` would forget what was shown already.
    filters, warnings.filters = warnings.filters, [("ignore", None, Warning, None, 0)]
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    finally:
        warnings.filters = filters


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right inside of one, in the order of the text; those that have no place of their
    own are none, as the parser uses one of each kind all over a tree."""
    found: list[ast.AST] = []
    for name in _parts(node._fields):
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            found.append(part)
        elif isinstance(part, list):
            found += [each for each in part if isinstance(each, ast.AST)]
    return found


@functools.cache
def _parts(fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields of a node but for contexts and operators, which are shared."""
    return tuple(name for name in fields if name not in ("ctx", "op", "ops"))


_INLINE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)

_GATHERERS = frozenset("all any dict filter list map max min set sum tuple".split())

_LOOPS = (Repeats.LOOP, Repeats.INLINE)

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

_LOOP = (ast.For, ast.AsyncFor, ast.While)

_TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))  # from Python 3.11 on

_LEAVES = (ast.Break, ast.Continue, ast.Raise, ast.Yield, ast.YieldFrom, ast.Return)


@dataclass(slots=True)
class _Reader:
    regions: list[Region]
    places: dict[int, Place] = field(default_factory=dict)

    def read(self, statements: list[ast.stmt], place: Place) -> None:
        for statement in statements:
            if isinstance(statement, _LOOP):
                self._loop(statement, place)
            elif isinstance(statement, _FUNCTION):
                inner = self._region(Repeats.CALL, place, _straight(statement.body))
                self._mark(statement, inner, body=False)
                self.read(statement.body, inner)
            else:
                self._mark(statement, place)
                self._expressions(statement, place)
                for block, always in _blocks(statement):
                    self.read(block, Place(place.region, place.always and always, place.body))

    def _loop(self, loop: ast.For | ast.AsyncFor | ast.While, place: Place) -> None:
        inner = self._region(Repeats.LOOP, place, _straight(loop.body))
        self._mark(loop, inner, body=False)
        self._expressions(loop, inner)
        self.read(loop.body, inner)
        self.read(loop.orelse, place)

    def _region(self, repeats: Repeats, place: Place, straight: bool) -> Place:
        self.regions.append(Region(repeats, place.region, place.always, straight))
        return Place(len(self.regions) - 1, True, True)

    def _mark(self, node: ast.stmt | ast.expr, place: Place, body: bool = True) -> None:
        where = Place(place.region, place.always, body)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            self.places[line] = where

    def _expressions(self, statement: ast.stmt, place: Place) -> None:
        """Give comprehensions and lambdas in the statement's own expressions their regions."""
        for child in _own(statement):
            for node in _inline(child):
                self._mark(node, self._region(Repeats.INLINE, place, False))


def _inline(node: ast.AST) -> Iterator[ast.expr]:
    """Comprehensions and lambdas whose passes are what the line does.

    Not those that only prepare a call: `nn.Sequential(*[... for ...]).cuda()` allocates once.
    """
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _INLINE):
            yield node
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") not in _GATHERERS:
            continue
        waiting += reversed(children(node))


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a statement that are not statements themselves."""
    nested = (ast.stmt, ast.excepthandler, ast.match_case)
    return (node for node in children(statement) if not isinstance(node, nested))


def _blocks(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """The blocks inside a statement that is no loop, and whether each runs whenever it does."""
    if isinstance(statement, (ast.With, ast.AsyncWith, ast.ClassDef)):
        yield statement.body, True
    elif isinstance(statement, ast.If):
        yield statement.body, False
        yield statement.orelse, False
    elif isinstance(statement, ast.Match):
        for case in statement.cases:
            yield case.body, False
    elif isinstance(statement, _TRY):
        yield statement.body, not statement.handlers
        for handler in statement.handlers:
            yield handler.body, False
        yield statement.orelse, False
        yield statement.finalbody, True


def _straight(body: list[ast.stmt]) -> bool:
    """Whether a pass through the body always reaches its end; a last `return` is that end."""
    *inner, last = body
    statements = inner if isinstance(last, ast.Return) else body
    return not any(isinstance(node, _LEAVES) for stmt in statements for node in ast.walk(stmt))


_BACKWARD = frozenset({"backward", "grad", "manual_backward"})
_ALL_NAMES = frozenset({"globals", "locals", "vars", "eval", "exec", "get_ipython"})
_OF_SYNTAX = frozenset({"getoutput", "system", "run_line_magic", "run_cell_magic"})
"""Methods of the shell that IPython's own syntax becomes calls of."""


def mentioned_later(
    cell: Cell, line: int | None, cells: Mapping[str, Cell]
) -> frozenset[str] | None:
    """Names in the statement at `line`, in those after it, and in functions of any cell.

    The statement is the outermost, so of a loop all lines count; of a shell command or a magic all
    words. None where that cannot be told: there is no line, the source is no Python, or it asks for
    all names at once.
    """
    tree = parse_cell(cell)
    if tree is None or not line:
        return None
    names = set()
    for statement in tree.body:
        if (statement.end_lineno or 0) >= line:
            names |= set(_names(statement))
    for other in {cell.python: cell, **{one.python: one for one in cells.values()}}.values():
        parsed = parse_cell(other)
        found = set()
        for node in ast.walk(parsed) if parsed else ():
            if isinstance(node, (*_FUNCTION, ast.Lambda, ast.ClassDef)):
                found |= set(_names(node))
        names |= found - _own_names(other.python) if found else found
    return None if names & _ALL_NAMES else frozenset(names)


def _own_names(python: str) -> frozenset[str]:
    """Names that are variables of a source's functions, and in none of these the notebook's."""
    try:
        waiting = symtable.symtable(python, "<cell>", "exec").get_children()
    except (SyntaxError, ValueError):
        return frozenset()
    own: set[str] = set()
    others: set[str] = set()
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            (others if symbol.is_global() else own).add(symbol.get_name())
    return frozenset(own - others)


def find_evaluations(
    cell: Cell, cells: Mapping[str, Cell], stacks: Sequence[Stack]
) -> frozenset[int]:
    """Places of stacks in which functions of other cells, that set a model to evaluation and lead
    to no backward pass, call what is torch's; none where the cell leads to one itself."""
    trees = [tree for one in cells.values() if (tree := parse_cell(one)) is not None]
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, _FUNCTION)]
    spoken = {function: _spoken(function) for function in functions}
    backward = set(_BACKWARD)
    while more := {f.name for f in functions if spoken[f] & backward} - backward:
        backward |= more
    own = parse_cell(cell)
    if own is None or _spoken(own) & backward:
        return frozenset()
    evaluating = {f.name for f in functions if "eval" in spoken[f]} - backward
    found = set()
    for place, stack in enumerate(stacks):
        inner = itertools.takewhile(lambda frame: frame.filename != cell.filename, stack)
        called = _until_torch([*inner][::-1])
        names = {frame.function for frame in called}
        known = all(frame.filename in cells for frame in called)
        if known and names & evaluating and not names & backward:
            found.add(place)
    return frozenset(found)


def _until_torch(frames: Iterable[Frame]) -> list[Frame]:
    torch = (f"{os.sep}torch{os.sep}", "/torch/")
    return [*itertools.takewhile(lambda f: not any(t in f.filename for t in torch), frames)]


def _spoken(node: ast.AST) -> set[str]:
    """All names and attributes in a part of a cell."""
    attributes = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
    return attributes | set(_names(node))


def names_only_set(cell: Cell) -> frozenset[str]:
    """Names that the cell gives values, and reads nowhere."""
    tree = parse_cell(cell)
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)] if tree else []
    read = {name.id for name in names if not isinstance(name.ctx, ast.Store)}
    return frozenset(name.id for name in names) - read


def names_set_first(cell: Cell) -> frozenset[str]:
    """Names that the cell gives values before it reads them."""
    tree = parse_cell(cell)
    read: set[str] = set()
    found: set[str] = set()
    for statement in tree.body if tree else ():
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
        read |= {name.id for name in names if not isinstance(name.ctx, ast.Store)}
        if isinstance(statement, ast.Assign):
            found |= {name.id for name in names if isinstance(name.ctx, ast.Store)} - read
    return frozenset(found)


def _names(node: ast.AST) -> Iterator[str]:
    yield from words_of_syntax(node)
    of_syntax = {shell for shell, _ in _calls_of_syntax(node)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner not in of_syntax:
            yield inner.id


def words_of_syntax(node: ast.AST) -> Iterator[str]:
    """The words of what stands in IPython's own syntax, magics and shell commands."""
    for _, call in _calls_of_syntax(node):
        for each in call.args:
            if isinstance(each, ast.Constant):
                yield from re.findall(r"[^\W\d]\w*", str(each.value))


def _calls_of_syntax(node: ast.AST) -> Iterator[tuple[ast.expr, ast.Call]]:
    """The calls that IPython makes of it, each with its name `get_ipython`."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and (shell := _shell_of_syntax(inner)):
            yield shell, inner


def _shell_of_syntax(call: ast.Call) -> ast.expr | None:
    """The name `get_ipython` in a call that IPython makes of its own syntax."""
    method = call.func
    if isinstance(method, ast.Attribute) and method.attr in _OF_SYNTAX:
        asked = method.value
        if isinstance(asked, ast.Call) and ast.unparse(asked.func) == "get_ipython":
            return asked.func
    return None
