"""Which items of a loop could make an iteration unlike those that ran: found without running it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from typing import Any

_PURE = (
    *(ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Attribute),
    *(ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop),
)
_ITEM = "__item__"
_SEQUENCES: tuple[type, ...] = (type(iter(range(0))), type(iter([])), type(iter(())))
_NOTHING: Any = object()
_MOST = 100_000
"""Items that are looked at, at most: one costs some microseconds."""


def outcomes_of(loop: ast.For) -> list[ast.expr]:
    """As an expression, a function that tells of an item how the tests in the loop's body turn out
    that go by the loop's variables alone; nothing where there are none."""
    targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    changed = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    found = [
        node.test
        for node in inside
        if isinstance(node, (ast.If, ast.IfExp)) and _goes_by(node.test, targets, changed)
    ]
    if not found:
        return []
    item = ast.comprehension(
        loop.target, ast.List([ast.Name(_ITEM, ast.Load())], ast.Load()), [], 0
    )
    told = ast.ListComp(ast.Tuple(found, ast.Load()), [item])
    parameters = ast.arguments([], [ast.arg(_ITEM)], None, [], [], None, [])
    return [ast.Lambda(parameters, told)]


def _goes_by(test: ast.expr, targets: set[str], changed: set[str]) -> bool:
    if not all(isinstance(node, _PURE) for node in ast.walk(test)):
        return False
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(names & targets) and not names & changed


class Items:
    """The kinds of items that a loop has run with, and the search for one of another kind.

    tests: what `outcomes_of` makes.
    """

    def __init__(self, tests: Callable[[Any], Any] | None) -> None:
        self._tests = tests
        self._kinds: set[Any] = set()
        self._values: set[Any] = set()

    def ran(self, item: Any) -> None:
        """An iteration runs with this item."""
        kind, values = self._kind(item), repr(_numbers(item))
        self._kinds.add(kind)
        self._values.add(values)

    def next_unlike(self, items: Iterator[Any]) -> tuple[Any, ...]:
        """The next item of a kind that did not run yet, and the one read after it; else the last
        item. Those between are passed over. Raises StopIteration."""
        item = next(items)
        for following in itertools.chain(itertools.islice(items, _MOST), [_NOTHING]):
            if following is _NOTHING:
                return (item,)
            if not self._is_alike(item):
                return item, following
            item = following
        raise StopIteration

    def _is_alike(self, item: Any) -> bool:
        same = len(self._values) > 1 or repr(_numbers(item)) in self._values
        return same and self._kind(item) in self._kinds

    def _kind(self, item: Any) -> Any:
        try:
            outcomes = repr(self._tests(item)) if self._tests else ""
        except Exception:  # the user's code may refuse the item; then it is the loop's to tell
            outcomes = repr(_NOTHING)
        return outcomes, _shape(item)


def can_look_ahead(items: Any) -> bool:
    """Whether to read items costs nothing and does nothing: they are there already."""
    if type(items) in _SEQUENCES:
        return True
    if type(items) is enumerate:
        return can_look_ahead(items.__reduce__()[1][0])
    if type(items) is zip:
        return all(map(can_look_ahead, items.__reduce__()[1]))
    return False


def _shape(item: Any) -> Any:
    if isinstance(item, (tuple, list)):
        return tuple(map(_shape, item))
    if isinstance(item, dict):
        return tuple((str(key), _shape(value)) for key, value in item.items())
    if isinstance(item, (str, bytes)):
        return len(item)
    return str(getattr(item, "shape", "")), str(getattr(item, "dtype", ""))


def _numbers(item: Any) -> Any:
    if isinstance(item, (tuple, list)):
        return tuple(map(_numbers, item))
    return item if isinstance(item, (int, float)) else None
