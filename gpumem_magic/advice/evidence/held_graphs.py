"""Finds loops that add up losses of independent batches for one backward pass: after the loop, or
in a branch of it that is taken every so many batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.accumulations import divisor_of, length_of
from gpumem_magic.advice.tree import Loop, lines_of
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Phase

_GROWS = ("append", "extend", "insert", "update", "add", "appendleft")
_ROUNDS = 2
THEIR_NUMBER = "their number"
"""A divisor that no expression says before the rounds are over."""

_LEAVES = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom)


@dataclass(frozen=True, slots=True)
class HeldGraphs:
    """A loop whose rounds each leave a graph, and the one `backward()` for several of them.

    between: the statements from the end of the loop, or the begin of its branch, to `backward()`.
    gather: the statement of the loop that keeps the loss, `value`, under the name `total`. divisor:
    text of what the sum is divided by, or "". rounds: graphs alive at once. size: bytes of them at
    the peak; saving: how much lower the peak were with one at a time.
    """

    loop: Loop
    between: Sequence[ast.stmt]
    gather: ast.stmt
    value: ast.expr
    total: str
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
    lives = trace.lives
    for call in cell.calls(".backward"):
        statement = cell.statement(call)
        if not isinstance(statement, ast.Expr) or statement.value is not call or call.args:
            continue
        if call.keywords:
            continue  # retain_graph, create_graph: the graph is wanted again
        for loop, between in _loops_of(cell, statement):
            for gather in _gathers(loop):
                divisor = _divisor(cell, between, gather, call)
                if divisor is None or _is_linked(cell, loop, gather, statement):
                    continue
                in_branch = cell.inside(statement, loop)
                rounds = loop.iter if isinstance(loop, ast.For) and not in_branch else None
                divisor = _known_inside(cell, rounds, (loop, *between), gather, divisor)
                if divisor is None:
                    continue
                weight = _weigh(trace, lives, cell, loop, statement)
                if weight is not None:
                    yield HeldGraphs(
                        loop, between, gather.statement, gather.value, gather.total,
                        divisor, statement, *weight,
                    )  # fmt: skip


def _loops_of(cell: Code, backward: ast.stmt) -> Iterator[tuple[Loop, Sequence[ast.stmt]]]:
    """The loop that ends before `backward()`, or that has it in a branch of its own block; each
    with what runs between."""
    loops: Sequence[ast.For | ast.While] = cell.nodes(ast.For, ast.While)
    for loop in cell.above(loops, backward):
        if cell.block(loop) is cell.block(backward) and not loop.orelse:
            yield loop, cell.after(loop, until=backward)
            return
    branch = cell.parent(backward)
    around = cell.loop(branch) if isinstance(branch, ast.If) else None
    if isinstance(branch, ast.If) and around is not None and branch in around.body:
        block = cell.block(backward)
        yield around, block[: cell.index(backward)]


def _gathers(loop: Loop) -> Iterator[_Gather]:
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
    cell: Code, between: Sequence[ast.stmt], gather: _Gather, call: ast.Call
) -> str | None:
    """What the sum is divided by before its backward pass: text, "" for nothing; None where the
    loss is another function of the losses than their sum or mean."""
    assert isinstance(call.func, ast.Attribute)
    name, listed, divisor = gather.total, gather.listed, ""
    for statement in between:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if cell.reads(name, value):
                found = divisor_of(cell, value, name, listed)
                if found is None or divisor:
                    return None
                name, listed, divisor = target, False, found
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Div(), value=value) if (
                target == name and not listed and not divisor
            ):
                divisor = cell.text(value)
            case _ if _changes(cell, statement, name):
                return None
    found = divisor_of(cell, call.func.value, name, listed)
    if found is None or (found and divisor):
        return None
    return divisor or found


def _known_inside(
    cell: Code, rounds: ast.expr | None, there: Sequence[ast.stmt], gather: _Gather, divisor: str
) -> str | None:
    """The divisor as the loop can say it while it runs; None where it cannot."""
    if not divisor:
        return ""
    if gather.listed and divisor == f"len({gather.total})":
        return length_of(cell, rounds) if rounds is not None else THEIR_NUMBER
    changed = {n.id for statement in there for n in _names(cell, statement, ast.Store)}
    changed.add(gather.total)
    read = {n.id for n in ast.walk(ast.parse(divisor, mode="eval")) if isinstance(n, ast.Name)}
    return None if read & changed else divisor


def _is_linked(cell: Code, loop: Loop, gather: _Gather, backward: ast.stmt) -> bool:
    """Whether a round reads what an earlier round left, other than the sum itself, which the branch
    of `backward()` begins anew."""
    written = set[str]() if isinstance(loop, ast.While) else cell.spoken(loop.target)
    later: set[str] = set()
    for statement in loop.body:
        own = statement is gather.statement or cell.inside(backward, statement)
        reads = {n.id for n in _names(cell, statement, ast.Load)}
        later |= reads - written - {gather.total}
        if not own:
            if _changes(cell, statement, gather.total):
                return True
            if gather.total in reads and not _is_report(statement):
                return True
        written |= {n.id for n in _names(cell, statement, ast.Store)}
    given = (n for statement in loop.body for n in _names(cell, statement, ast.Store))
    kept = {n.id for n in given if not _counts(cell.parent(n))}
    carried = (later & kept) - {gather.total}
    return (
        bool(carried)
        or _is_remembered(cell, loop, gather.total)
        or any(cell.nodes(*_LEAVES, within=statement) for statement in loop.body)
    )


def _is_remembered(cell: Code, loop: Loop, total: str) -> bool:
    """Whether the loop reads a container or attribute that it puts something into."""
    changed: list[str] = []
    nodes = [node for statement in loop.body for node in cell.walk(statement)]
    for node in nodes:
        match node:
            case ast.Subscript(value=value, ctx=ast.Store()):
                changed.append(cell.text(value))
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _GROWS:
                changed.append(cell.text(value))
    stored = [cell.text(n) for n in nodes if isinstance(n, ast.Attribute) and _is(n, ast.Store)]
    read = [
        cell.text(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and _is(n, ast.Load)
    ]
    return any(
        read.count(text) > changed.count(text) for text in {*changed, *stored} if text != total
    )


def _is(node: ast.Name | ast.Attribute, context: type[ast.expr_context]) -> bool:
    return isinstance(node.ctx, context)


def _counts(above: ast.AST | None) -> bool:
    """Whether what changes a name adds a constant to it."""
    return isinstance(above, ast.AugAssign) and isinstance(above.value, ast.Constant)


def _is_report(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return True
    return False


def _weigh(
    trace: Trace, lives: Lifetimes, cell: Code, loop: Loop, backward: ast.stmt
) -> tuple[int, int, int] | None:
    """Rounds, bytes and saving of the graphs that the loop left for the backward pass; None where
    there are not several, or the pass also went through what was made before the loop."""
    lines = _lines_beside(cell, lives, loop)
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    inside = (lines >= first) & (lines <= last) & (lives.birth >= 0)
    end = backward.end_lineno or backward.lineno
    used = (lives.freed == Phase.BACKWARD) & (lives.freed_line >= backward.lineno)
    used &= (lives.freed_line <= end) & (lives.born == Phase.FORWARD)
    outside = used & ~inside & (lines < first)
    if lives.bytes(outside) > lives.bytes(used & inside) // 100:
        return None
    held = used & inside
    if not held.any() or _keeps_state(trace, cell, loop, held):
        return None
    order = np.flatnonzero(held)[np.argsort(lives.freed_step[held], kind="stable")]
    passes = np.split(order, np.flatnonzero(np.diff(lives.freed_step[order])) + 1)
    found, counts = np.unique(lines[held], return_counts=True)
    busiest = int(found[np.argmax(counts)])
    ran = next((line.count for line in trace.lines if line.number == busiest), 0)
    graph = max(passes, key=len)
    largest = graph[np.argmax(lives.size[graph])]
    alike = (lives.stack == lives.stack[largest]) & (lives.size == lives.size[largest])
    kept = alike & (held | (lives.death >= lives.events))  # some wait for no pass at the end
    rounds = ran // len(passes)
    if cell.inside(backward, loop):
        rounds = ran * int(alike[graph].sum()) // int(kept.sum())
    if rounds < _ROUNDS:
        return None
    later = np.zeros(len(lives), bool)
    for graph in passes:  # all but its last round
        later[graph[: len(graph) * (rounds - 1) // rounds]] = True
    return rounds, lives.bytes(held & lives.at_peak), lives.saved_at_peak(later)


def _keeps_state(trace: Trace, cell: Code, loop: Loop, held: NDArray[np.bool_]) -> bool:
    """Whether a function that made these reads an attribute that one of them gives its value: a
    hidden state, say, by which a round goes on from the one before."""
    code, trace = cell.joined() or (cell, trace)
    lives, around = trace.lives, cell.function(loop)
    stacks = (lives.stacks[n] for n in np.unique(lives.stack[held]).tolist() if n >= 0)
    statements = (code.statement_at(line) for line in set(code.lines_in(*stacks)))
    functions = {code.function(each) for each in statements if each is not None}
    stored, read = set[str](), set[str]()
    for function in functions:
        if function is None or (around is not None and function.name == around.name):
            continue
        for node in code.nodes(ast.Attribute, within=function):
            if not _counts(code.parent(node)):
                (stored if isinstance(node.ctx, ast.Store) else read).add(code.text(node))
    return not stored.isdisjoint(read)


def _lines_beside(cell: Code, lives: Lifetimes, loop: Loop) -> NDArray[np.int32]:
    """For each storage the line that ran in the function of the loop, in which or in what it called
    it was made; 0 where none did, -1 for what is older than the cell."""
    function = cell.function(loop)
    span = lines_of(function) if function is not None else range(1, len(cell.source) + 1)
    own = map(cell.lines_in, lives.stacks)
    by_stack = [next((n for n in reversed(lines) if n in span), 0) for lines in own]
    return np.where(lives.birth < 0, -1, np.array([*by_stack, 0], np.int32)[lives.stack])


def _names(cell: Code, node: ast.AST, context: type[ast.expr_context]) -> Iterator[ast.Name]:
    return (n for n in cell.nodes(ast.Name, within=node) if isinstance(n.ctx, context))


def _changes(cell: Code, statement: ast.stmt, name: str) -> bool:
    """Whether a statement gives the name another value, or puts something into what it means."""
    return any(cell.assigned(name, statement)) or any(
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == name
        for call in cell.calls(*(f".{method}" for method in _GROWS), within=statement)
    )
