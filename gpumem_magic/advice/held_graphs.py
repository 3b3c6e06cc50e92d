"""Finds loops that add up losses of independent batches for one backward pass after the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.events import Phase
from gpumem_magic.trace.findings import Trace
from gpumem_magic.trace.lifetimes import Lifetimes

_GROWS = ("append", "extend", "insert", "update", "add", "appendleft")
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class HeldGraphs:
    """A loop whose rounds each leave a graph, and the one `backward()` behind it.

    gather: the statement of the loop that keeps the loss, `value`, under the name `total`; listed:
    by appending. divisor: text of what the sum is divided by, or "". rounds: graphs alive at once.
    size: bytes of them at the peak; saving: how much lower the peak were with one at a time.
    """

    loop: ast.For
    gather: ast.stmt
    value: ast.expr
    total: str
    listed: bool
    divisor: str
    backward: ast.Expr
    rounds: int
    size: int
    saving: int


@dataclass(frozen=True, slots=True)
class _Gather:
    statement: ast.stmt
    value: ast.expr
    total: str
    listed: bool


def find_held_graphs(trace: Trace, cell: Code) -> Iterator[HeldGraphs]:
    """Loops over batches that share nothing but the model."""
    lives = trace.lifetimes
    if lives is None:
        return
    for call in cell.calls(".backward"):
        statement = cell.statement(call)
        if not isinstance(statement, ast.Expr) or statement.value is not call or call.args:
            continue
        if call.keywords:
            continue  # retain_graph, create_graph: the graph is wanted again
        for loop in _loops_before(cell, statement):
            for gather in _gathers(loop):
                divisor = _divisor(cell, loop, gather, statement, call)
                if divisor is None or _is_linked(loop, gather):
                    continue
                weight = _weigh(lives, cell, loop, statement)
                if weight is not None:
                    yield HeldGraphs(
                        loop, gather.statement, gather.value, gather.total, gather.listed,
                        divisor, statement, *weight,
                    )  # fmt: skip


def _loops_before(cell: Code, backward: ast.stmt) -> Iterator[ast.For]:
    block = cell.block(backward)
    for statement in reversed(block[: block.index(backward)]):
        if isinstance(statement, ast.For) and not statement.orelse:
            yield statement
            return


def _gathers(loop: ast.For) -> Iterator[_Gather]:
    """`total += value`, `total = total + value`, `losses.append(value)` of the loop's own block."""
    for statement in loop.body:
        match statement:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                yield _Gather(statement, value, name, False)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.BinOp(left=ast.Name(id=same), op=ast.Add(), right=value),
            ) if name == same:
                yield _Gather(statement, value, name, False)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="append"),
                    args=[value],
                    keywords=[],
                )
            ):
                yield _Gather(statement, value, name, True)


def _divisor(
    cell: Code, loop: ast.For, gather: _Gather, backward: ast.stmt, call: ast.Call
) -> str | None:
    """What the sum is divided by before its backward pass: text, "" for nothing; None where the
    loss is another function of the losses than their sum or mean."""
    assert isinstance(call.func, ast.Attribute)
    block = cell.block(backward)
    between = block[block.index(loop) + 1 : block.index(backward)]
    name, listed, divisor = gather.total, gather.listed, ""
    for statement in between:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if _reads(value, name):
                found = _reduced(cell, loop, value, name, listed)
                if found is None or divisor:
                    return None
                name, listed, divisor = target, False, found
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Div(), value=value) if (
                target == name and not listed and not divisor
            ):
                divisor = cell.text(value)
            case _ if _changes(statement, name):
                return None
    found = _reduced(cell, loop, call.func.value, name, listed)
    if found is None or (found and divisor):
        return None
    return divisor or found


def _reduced(cell: Code, loop: ast.For, value: ast.expr, name: str, listed: bool) -> str | None:
    """By what an expression divides the sum of the losses under a name; None: it is no such sum."""
    match value:
        case ast.Name(id=same) if same == name and not listed:
            return ""
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            inner = _reduced(cell, loop, left, name, listed)
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
            return _length(cell, loop.iter) if how == "mean" else None
        case ast.Call(args=[inner], keywords=[], func=func) if cell.dotted(func) in (
            "torch.mean",
            "torch.sum",
        ):
            match inner:
                case ast.Call(args=[ast.Name(id=same)], keywords=[], func=stack_of) if (
                    same == name and listed and cell.dotted(stack_of) == "torch.stack"
                ):
                    mean = cell.dotted(func) == "torch.mean"
                    return _length(cell, loop.iter) if mean else ""
    return None


def _length(cell: Code, source: ast.expr) -> str | None:
    """How many rounds a loop over an expression makes, as text; None where that is not known."""
    match source:
        case ast.Name():
            return f"len({source.id})"
        case ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]):
            return cell.text(count)
        case ast.Call(func=ast.Name(id="enumerate" | "zip"), args=[first, *_]):
            return _length(cell, first)
        case ast.Call(func=ast.Attribute(attr="split" | "chunk")):
            return f"len({cell.text(source)})"
    return None


def _is_linked(loop: ast.For, gather: _Gather) -> bool:
    """Whether a round reads what an earlier round left, other than the sum itself."""
    written: set[str] = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    later: set[str] = set()
    for statement in loop.body:
        own = statement is gather.statement
        reads = {n.id for n in _names(statement, ast.Load)}
        later |= reads - written - {gather.total}
        if not own:
            if _changes(statement, gather.total):
                return True
            if gather.total in reads and not _is_report(statement):
                return True
        written |= {n.id for n in _names(statement, ast.Store)}
    kept = {n.id for statement in loop.body for n in _names(statement, ast.Store)}
    carried = (later & kept) - {gather.total}
    return bool(carried) or any(
        isinstance(node, (ast.Break, ast.Return, ast.Yield, ast.YieldFrom))
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _is_report(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return True
    return False


def _weigh(
    lives: Lifetimes, cell: Code, loop: ast.For, backward: ast.stmt
) -> tuple[int, int, int] | None:
    """Rounds, bytes and saving of the graphs that the loop left for the backward pass; None where
    there are not several, or the pass also went through what was made before the loop."""
    lines = cell.calling_lines(lives)
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    inside = (lines >= first) & (lines <= last) & (lives.birth >= 0)
    end = backward.end_lineno or backward.lineno
    used = (lives.freed == Phase.BACKWARD) & (lives.freed_line >= backward.lineno)
    used &= (lives.freed_line <= end) & (lives.born == Phase.FORWARD)
    outside = used & ~inside & (lines < first)
    if lives.bytes(outside) > lives.bytes(used & inside) // 100:
        return None
    held = used & inside
    if not held.any():
        return None
    passes = np.unique(lives.freed_step[held])
    one = held & (lives.freed_step == passes[0])
    begins = _rounds(lives, one)
    if len(begins) < _ROUNDS:
        return None
    later = held & _of_later_rounds(lives, held, passes.tolist())
    size = lives.bytes(held & lives.at_peak)
    return len(begins), size, lives.saved_at_peak(later)


def _rounds(lives: Lifetimes, held: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The births of the first saved tensor of each round: of the stack that bore most of them."""
    stacks = lives.stack[held]
    if not len(stacks):
        return np.array([], np.int64)
    largest = lives.size[held].max()
    big = held & (lives.size == largest)
    found, counts = np.unique(lives.stack[big], return_counts=True)
    rarest = found[np.argmin(counts)]
    return np.sort(lives.birth[big & (lives.stack == rarest)])


def _of_later_rounds(
    lives: Lifetimes, held: NDArray[np.bool_], passes: list[int]
) -> NDArray[np.bool_]:
    """Of each backward pass, what all rounds but the last had saved for it."""
    found = np.zeros(len(lives), bool)
    for step in passes:
        one = held & (lives.freed_step == step)
        begins = _rounds(lives, one)
        if len(begins) >= _ROUNDS:
            found |= one & (lives.birth < begins[-1])
    return found


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[ast.Name]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context))


def _reads(node: ast.AST, name: str) -> bool:
    return any(n.id == name for n in _names(node, ast.Load))


def _changes(statement: ast.stmt, name: str) -> bool:
    """Whether a statement gives the name another value, or puts something into what it means."""
    if any(n.id == name for n in _names(statement, ast.Store)):
        return True
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in _GROWS
        and isinstance(n.func.value, ast.Name)
        and n.func.value.id == name
        for n in ast.walk(statement)
    )
