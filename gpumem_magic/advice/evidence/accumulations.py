"""Finds what a cell adds up or collects, pass by pass of a loop, and how it is read later, or
summed."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.tree import root

_COLLECTING = ("append", "appendleft", "extend", "insert", "add", "push", "put", "update")
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
_NUMBERS = ("print", "float", "round", "int", "str", "format", "min", "max", "abs", "len", "sum")
_LIBRARIES = ("numpy", "math", "statistics", "matplotlib")


@dataclass(frozen=True, slots=True)
class Accumulation:
    """`value` is added to `target` in each pass. sums: as a number, by `+`; otherwise collected.

    name: the variable at the root of the target, "" where it has none.
    """

    statement: ast.stmt
    value: ast.expr
    target: str
    name: str
    sums: bool = False

    @property
    def binds(self) -> bool:
        """Whether it gives a name another value, rather than changes what the name means."""
        made = self.statement
        return isinstance(made, ast.Assign) and isinstance(made.targets[0], ast.Name)

    def goes_into(self, word: str) -> bool:
        """Whether the target ends with that word: "seen" of `self.seen[key]`."""
        return re.findall(r"\w+", self.target)[-1:] == [word]


def find_accumulations(code: Code) -> Iterator[Accumulation]:
    """All of a cell, in the order of its lines: `total += loss`, `losses.append(loss)`,
    `seen[key] = output`, `[model(batch) for batch in batches]`."""
    found = [
        each
        for node in code.nodes(ast.stmt)
        if code.loop(node) is not None
        for each in _of_statement(code, node)
    ]
    found += [
        each for node in code.nodes(*_COMPREHENSIONS) for each in _of_comprehension(code, node)
    ]
    yield from sorted(found, key=lambda each: (each.value.lineno, each.value.col_offset))


def _of_statement(code: Code, statement: ast.stmt) -> Iterator[Accumulation]:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add | ast.Sub):
        into, sums = statement.target, not isinstance(statement.value, ast.List)
        for value in _items(statement.value):
            yield Accumulation(statement, value, code.text(into), root(into), sums)
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        added = _added(code, statement)
        if added is not None:
            yield Accumulation(statement, added, code.text(target), root(target), True)
        elif isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
            for value in _items(statement.value):
                text = code.text(target.value)
                yield Accumulation(statement, value, text, root(target))
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and _collects(call, call.func.attr):
            held = call.func.value
            for value in _items(call.args[-1]):
                yield Accumulation(statement, value, code.text(held), root(held))


def _collects(call: ast.Call, method: str) -> bool:
    """Whether it puts one value into a container: with several it is some class's own method."""
    return method in _COLLECTING and len(call.args) == (2 if method == "insert" else 1)


def _added(code: Code, statement: ast.Assign) -> ast.expr | None:
    """`value` of `total = total + value`."""
    value, target = statement.value, code.text(statement.targets[0])
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        if code.text(value.left) == target:
            return value.right
        if code.text(value.right) == target:
            return value.left
    return None


def _of_comprehension(code: Code, node: ast.expr) -> Iterator[Accumulation]:
    statement, sums = code.statement(node), False
    if isinstance(node, ast.GeneratorExp):
        call = code.parent(node)
        if not (isinstance(call, ast.Call) and code.dotted(call.func) in ("sum", "list", "tuple")):
            return
        sums = code.dotted(call.func) == "sum"
    if isinstance(statement, ast.Expr) and statement.value is node and code.function(node):
        return  # nobody keeps it
    if _is_given(code, node):
        return  # a function's own graphs are of that line, too
    assigned = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    target = statement.targets[0] if isinstance(statement, ast.Assign) and assigned else None
    text = code.text(target) if target is not None else "the result"
    held = node.value if isinstance(node, ast.DictComp) else getattr(node, "elt", node)
    for value in _items(held):
        yield Accumulation(statement, value, text, root(target) if target else "", sums)


def _is_given(code: Code, node: ast.expr) -> bool:
    """Whether a function is given what a comprehension builds, other than one of torch's or of
    Python's own."""
    below: ast.AST = node
    for above in code.ancestors(node):
        if isinstance(above, ast.stmt):
            return False
        if isinstance(above, ast.Call) and below is not above.func:
            name = code.dotted(above.func)
            return not (name.startswith("torch.") or hasattr(builtins, name))
        below = above
    return False


def _items(value: ast.expr) -> list[ast.expr]:
    """What a value is put together of: itself, or the items of a literal."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return [item for part in value.elts for item in _items(part)]
    if isinstance(value, ast.Dict):
        return [item for part in value.values for item in _items(part)]
    return [value]


def goes_on(code: Code, one: Accumulation) -> bool:
    """Whether each pass computes with what the one before left, as in `x = x + step(x)`: that is no
    sum of results."""
    loop = code.loop(one.statement)
    if one.target != one.name or loop is None:
        return False
    calls = (code.parent(read) for read in code.reads(one.name, loop))
    return any(
        isinstance(call, ast.Call) and code.dotted(call.func) not in ("print", "float", "len")
        for call in calls
    )


def is_read_as_number(code: Code, name: str) -> bool:
    """Whether the cell prints a name, or computes with it as with a number, or takes one out."""
    return any(_use(code, read) == "number" or _gives_item(code, read) for read in code.reads(name))


def _gives_item(code: Code, read: ast.expr) -> bool:
    """Whether what is computed of it ends in a number of Python: torch.exp(total / n).item()."""
    for above in code.ancestors(read):
        if isinstance(above, ast.stmt):
            break
        if isinstance(above, ast.Attribute) and above.attr in ("item", "tolist"):
            return True
    return False


def is_only_a_number(code: Code, name: str, within: ast.AST | None = None) -> bool:
    """Whether a plain number would do wherever the cell reads the name; at least once it does."""
    uses = [_use(code, read) for read in code.reads(name, within)]
    return "number" in uses and "other" not in uses


def _use(code: Code, read: ast.expr, depth: int = 3) -> str:
    """How a value is read: as a "number", "own" (by its own accumulation), or in an "other" way."""
    above = code.parent(read)
    if isinstance(above, (ast.FormattedValue, ast.Compare)):
        return "number"
    if isinstance(above, (ast.BinOp, ast.UnaryOp)):
        return _use(code, above, depth)
    if isinstance(above, ast.Attribute):
        return _use_of_method(code, read, above)
    if isinstance(above, ast.Call) and read in above.args:
        called = code.dotted(above.func)
        number = called in _NUMBERS or called.split(".")[0] in _LIBRARIES
        if called == "sum":
            return _use(code, above, depth)
        return "number" if number else "other"
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name) and depth:
        name, scope = above.targets[0].id, code.function(above)
        if isinstance(read, ast.BinOp) and name in code.spoken(read):
            return "own"
        uses = {_use(code, again, depth - 1) for again in code.reads(name, scope)} - {"own"}
        return "number" if uses == {"number"} else "other"
    if isinstance(above, ast.AugAssign):
        return "own" if isinstance(above.target, ast.Name) else "other"
    return "other"


def _use_of_method(code: Code, read: ast.expr, attribute: ast.Attribute) -> str:
    call = code.parent(attribute)
    if not isinstance(call, ast.Call) or attribute.attr not in _COLLECTING:
        return "other"
    return "own" if isinstance(code.parent(call), ast.Expr) else "other"


def divisor_of(cell: Code, value: ast.expr, name: str, listed: bool) -> str | None:
    """By what an expression divides the sum of the losses under a name; None: it is no such sum."""
    match value:
        case ast.Name(id=same) if same == name and not listed:
            return ""
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            inner = divisor_of(cell, left, name, listed)
            return cell.text(right) if inner == "" else None
        case ast.Call(func=ast.Name(id="sum"), args=[ast.Name(id=same)], keywords=[]):
            return "" if same == name and listed else None
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(args=[ast.Name(id=same)], keywords=[]) as stack, attr=how
            ),
            args=[],
            keywords=[],
        ) if same == name and listed and cell.dotted(stack.func) == "torch.stack":
            if how == "sum":
                return ""
            return f"len({name})" if how == "mean" else None
        case ast.Call(args=[inner], keywords=[], func=func) if cell.dotted(func) in (
            "torch.mean",
            "torch.sum",
        ):
            match inner:
                case ast.Call(args=[ast.Name(id=same)], keywords=[], func=stack_of) if (
                    same == name and listed and cell.dotted(stack_of) == "torch.stack"
                ):
                    mean = cell.dotted(func) == "torch.mean"
                    return f"len({name})" if mean else ""
    return None


def length_of(cell: Code, source: ast.expr) -> str | None:
    """How many rounds a loop over an expression makes, as text; None where that is not known."""
    match source:
        case ast.Name():
            return f"len({source.id})"
        case ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]):
            return cell.text(count)
        case ast.Call(func=ast.Name(id="enumerate" | "zip"), args=[first, *_]):
            return length_of(cell, first)
        case ast.Call(func=ast.Attribute(attr="split" | "chunk")):
            return f"len({cell.text(source)})"
    return None
