"""Finds names that are not read any more while what they mean is still alive."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code, Loop
from gpumem_magic.advice.tree import defined, lines_of
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Phase

_KEPT = (
    *(Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE),
    *(Category.WORKSPACE,),
)
_ALIASING = frozenset(
    "view reshape t transpose permute squeeze unsqueeze flatten expand narrow chunk split unbind "
    "detach T mT data view_as movedim append extend add insert put requires_grad_ contiguous "
    "swapaxes".split()
)
"""Methods that give, or keep, another holder of the same memory."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Names that could be let go of below a statement. held: the storages at the peak that would go
    with them. storages: these and their like at other peaks."""

    names: tuple[str, ...]
    below: ast.stmt
    held: NDArray[np.bool_]
    storages: NDArray[np.bool_]
    loop: Loop | None = None


def unread_at_peak(cell: Code, lives: Lifetimes) -> Iterator[Unread]:
    """Results that nothing reads from the peak on: of statements that run once, and of the
    iteration before the one that holds the peak."""
    peak = lines_at_peak(cell, lives)
    if not peak:
        return
    graphs = bool((lives.at_peak & lives.graph).any())
    for statement in cell.nodes(ast.Assign, ast.For, ast.While):
        found = None
        if isinstance(statement, (ast.For, ast.While)):
            found = _carried_over(cell, lives, statement, peak)
        elif isinstance(statement, ast.Assign) and cell.loop(statement) is None and not graphs:
            found = _after_last_read(cell, lives, statement, peak)
        if found is not None:
            yield found


def lines_at_peak(cell: Code, lives: Lifetimes) -> frozenset[int]:
    """Lines of the cell that were running when the peak was reached."""
    born = np.flatnonzero((lives.birth == lives.peak_event) & (lives.birth >= 0))
    frames = lives.frames(int(born[0])) if len(born) else ()
    return frozenset(frame.line for frame in frames if frame.filename == cell.cell.filename)


def _after_last_read(
    cell: Code, lives: Lifetimes, statement: ast.Assign, peak: frozenset[int]
) -> Unread | None:
    name = _only_name(statement)
    if name is None or not cell.reads(name):
        return None
    scope, block, here = cell.function(statement), cell.block(statement), cell.index(statement)
    if any(cell.function(read) is not scope for read in cell.reads(name)):
        return None
    places = [cell.beside(read, statement) for read in cell.reads(name)]
    if None in places:
        return None
    given = (cell.index(s) for s in cell.assigned(name) if _gives(s, name, block, cell))
    again = next((place for place in given if place > here), len(block) - 1)
    last = max((place for place in places if place and here < place <= again), default=None)
    if last is None or _aliased(cell, name, scope):
        return None
    at = next((i for i in _running(block, peak) if i > here), None)
    if at is None or not last < at <= again:
        return None
    held = cell.born_in(statement, lives) & lives.at_peak & ~lives.of(*_KEPT)
    held &= ~lives.graph & (lives.freed != Phase.BACKWARD) & _is_own(cell, lives, name)
    return Unread((name,), block[last], held, _alike(lives, held))


def _carried_over(cell: Code, lives: Lifetimes, loop: Loop, peak: frozenset[int]) -> Unread | None:
    """What the iteration before has left in names that this one gives new values."""
    inside = set(lines_of(loop)) - {loop.lineno}
    if not peak & inside or _inner_loop(cell, loop, peak):
        return None
    begun = _iteration_start(cell, lives, loop)
    if begun is None:
        return None
    names = [name for name in _given(loop) if _is_of_one_iteration(cell, loop, name)]
    given = {name: _given_on(cell, loop, name) for name in names}
    lines = {n for each in given.values() for n in each}
    held = (
        lives.born_under(cell.cell.filename, inside | {loop.lineno})
        & lives.at_peak
        & ~lives.of(*_KEPT)
    )
    held &= (lives.birth < begun) & np.isin(lives.freed_line, list(lines))
    held &= lives.freed == Phase.FORWARD
    freeing = set(lives.freed_line[held].tolist())
    dropped = [
        name
        for name in names
        if freeing & given[name] and not _aliased(cell, name, cell.function(loop))
    ]
    shared = _lines_of_others(cell, loop, dropped)
    dropped = [n for n in dropped if shared.isdisjoint(given[n])]
    kept = {line for name in dropped for line in given[name]}
    held &= np.isin(lives.freed_line, list(kept))
    storages = _alike(lives, held)
    return Unread(tuple(dropped), loop.body[-1], held, storages, loop) if dropped else None


def _given_on(cell: Code, loop: Loop, name: str) -> set[int]:
    """The lines that give a name a value in the loop."""
    return {line for s in cell.assigned(name, loop) for line in _rebinding(s, loop)}


def _lines_of_others(cell: Code, loop: Loop, names: list[str]) -> set[int]:
    """Lines that give other names values, too: what they free may be those'."""
    given = cell.nodes(ast.Assign, within=loop)
    others = (s for s in given if not {*defined(s)} <= {*names})
    return {line for s in others for line in lines_of(s)}


def _alike(lives: Lifetimes, held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """These and their like of other iterations and calls, which make peaks as high as theirs."""
    columns = (lives.line.astype(np.int64), lives.size, lives.freed_line.astype(np.int64))
    kinds = {tuple(row) for row in np.stack([c[held] for c in columns], 1).tolist()}
    like = np.isin(columns[0], columns[0][held]) & np.isin(columns[1], columns[1][held])
    for row in np.flatnonzero(like).tolist():
        like[row] = tuple(int(column[row]) for column in columns) in kinds
    return like


def _inner_loop(cell: Code, loop: Loop, peak: frozenset[int]) -> bool:
    return any(
        node is not loop and peak & set(lines_of(node))
        for node in cell.nodes(ast.For, ast.While, within=loop)
    )


def _iteration_start(cell: Code, lives: Lifetimes, loop: Loop) -> int | None:
    """The event from which on the iteration that holds the peak runs; None in the first one."""
    place = {n: i for i, s in enumerate(_straight(loop.body)) for n in lines_of(s)}
    place[loop.lineno] = -1
    by_stack = [
        next(
            (place[f.line] for f in stack if f.filename == cell.cell.filename and f.line in place),
            -2,
        )
        for stack in lives.stacks
    ]
    where = np.array([*by_stack, -2], np.int64)[lives.stack]
    here = np.flatnonzero((where > -2) & (lives.birth >= 0) & (lives.birth <= lives.peak_event))
    order = here[np.argsort(lives.birth[here], kind="stable")]
    wraps = np.flatnonzero(np.diff(where[order]) < 0)
    return int(lives.birth[order[wraps[-1] + 1]]) if len(wraps) else None


def _given(loop: Loop) -> Iterator[str]:
    """Names that every iteration gives a value."""
    seen = set()
    targets: list[ast.expr] = [] if isinstance(loop, ast.While) else [loop.target]
    for statement in _straight(loop.body):
        if isinstance(statement, ast.Assign):
            targets += statement.targets
    for target in targets:
        for node in ast.walk(target):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if isinstance(node, ast.Name) and stored and node.id not in seen:
                seen.add(node.id)
                yield node.id


def _straight(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from _straight(statement.body)
        else:
            yield statement


def _is_of_one_iteration(cell: Code, loop: Loop, name: str) -> bool:
    """Whether the name means nothing outside the loop, and is given before it is read."""
    scope = cell.function(loop)
    first = min(
        (s.end_lineno or s.lineno) if not isinstance(s, (ast.For, ast.While)) else s.lineno
        for s in cell.assigned(name, loop)
    )
    for read in cell.reads(name, scope):
        if not cell.inside(read, loop) or cell.function(read) is not scope or read.lineno < first:
            return False
        if read.lineno == first and isinstance(cell.statement(read), ast.Assign):
            if not isinstance(loop, ast.While) and _names_in(loop.target, name):
                continue  # x = x.cuda() of the loop's own x
            return False
    return not any(cell.function(read) is not scope for read in cell.reads(name))


def _names_in(target: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))


def _rebinding(statement: ast.stmt, loop: Loop) -> Iterator[int]:
    if statement is loop:
        yield loop.lineno
    elif isinstance(statement, ast.Assign):
        yield from lines_of(statement)


def _aliased(cell: Code, name: str, scope: ast.AST | None) -> bool:
    """Whether something else may hold the same memory: a view, a list, an object."""
    return any(_may_keep(cell, read) for read in cell.reads(name, scope))


def _may_keep(cell: Code, read: ast.Name) -> bool:
    above = cell.parent(read)
    if isinstance(above, ast.keyword):
        above = cell.parent(above)
    if isinstance(above, ast.Subscript):
        return not isinstance(cell.parent(above), (ast.BinOp, ast.Compare))
    if isinstance(above, ast.Attribute):
        return above.attr in _ALIASING
    if isinstance(above, ast.Call):
        called = cell.dotted(above.func).rsplit(".", 1)[-1]
        return (
            called in _ALIASING
            or called[:1].isupper()
            or (isinstance(above.func, ast.Attribute) and above.func.attr in _ALIASING)
        )
    return not isinstance(above, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.FormattedValue))


def _only_name(statement: ast.Assign) -> str | None:
    target = statement.targets[0]
    return target.id if len(statement.targets) == 1 and isinstance(target, ast.Name) else None


def _gives(statement: ast.stmt, name: str, block: list[ast.stmt], cell: Code) -> bool:
    """Whether a statement of the block itself is `name = ...`."""
    own = isinstance(statement, ast.Assign) and _only_name(statement) == name
    return own and cell.block(statement) is block


def _running(block: list[ast.stmt], lines: frozenset[int]) -> list[int]:
    """The places in a block of the statements that these lines are part of."""
    found = set()
    for line in lines:
        place = bisect_left(block, line, key=lambda s: s.end_lineno or s.lineno)
        if place < len(block) and block[place].lineno <= line:
            found.add(place)
    return sorted(found)


def _is_own(cell: Code, lives: Lifetimes, name: str) -> NDArray[np.bool_]:
    """Storages that nothing but this name, or nothing at all, is known to hold."""
    found = cell.once(_roots, lives)[lives.label]
    return np.asarray((found == name) | (found == ""), bool)


def _roots(cell: Code, lives: Lifetimes) -> NDArray[np.str_]:
    """The variable of each label, "" for a label without a name and for none."""
    return np.array([*((label.name or "").split(".")[0] for label in lives.labels), ""], np.str_)
