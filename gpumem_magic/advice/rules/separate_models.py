"""Models that one cell uses one after another, and keeps on the device together."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.last_uses import lines_at_peak
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.rewrite import insert_after
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import LOOPS, defined, header
from gpumem_magic.trace.cell_flow import words_of_syntax
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_SHARE: Final = 0.1
"""Of the peak: a smaller model is not why memory is short."""

_MOST: Final = 0.5
"""Of the peak, from which on separate models together are."""

_OF_MODELS: Final = (
    *(Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE),
)
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict)

_SETUP = """\
import torch
from torch import nn

def build(width):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).cuda()

x = torch.ones(16, 1024, device="cuda")
"""
_TRAINED = """\
small = build(1024)
optimizer = torch.optim.Adam(small.parameters())
small(x).square().mean().backward()
optimizer.step()
large = build(2048)
score = large(x.repeat(1, 2)).sum().item()
"""
_COMPARED = """\
first = build(1024)
second = build(1024)
third = build(1024)
scores = []
for model in (first, second, third):
    scores.append(model(x).sum().item())
"""
_HOLDING: Final = frozenset({"builtins.function", "builtins.method", "builtins.generator"})
"""What keeps what it was made of, such as a closure, a method its object."""


class SeparateModels(Rule):
    """A cell that compares models keeps all of them on the device until it ends.

    Each model stays there as long as its name means it, with its gradients, and with the states of
    its optimizer as long as that is kept. `del model, optimizer` below the last use of one lets go
    of it before the next one is made; `model.cpu()` keeps its weights on the host. Models that
    compute together, such as a generator and its critic, have to be there together. The rule speaks
    when memory is short.
    """

    name: ClassVar[str] = "separate-models"
    problem: ClassVar[str] = "models that are used one after another are on the device together"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("optimizer.step()\n", "optimizer.step()\ndel small, optimizer\n"),
            setup=_SETUP,
            before=_TRAINED,
            card="320MiB",
            results=("score",),
        ),
        Example(
            setup=_SETUP,
            before=_COMPARED,
            after="""\
scores = []
for width in (1024, 1024, 1024):
    model = None
    model = build(width)
    scores.append(model(x).sum().item())
""",
            card="80MiB",
            rewritten=False,
            results=("scores",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        if not is_short(trace):
            return
        lives, peak = trace.lives, trace.peak.allocated or 0
        alive = lives.at_peak & lives.of(*_OF_MODELS) & (lives.birth >= 0)
        for growth in trace.growth:  # models that a loop collects are told with that
            alive[list(growth.rows)] = False
        own = lives.by_owner(alive)
        made = {
            name: _Made(name, given, lives.rows(rows))
            for name, rows in own.items()
            if name and int(lives.size[rows].sum()) >= _SHARE * peak
            if (given := _only_assignment(cell, name))
        }
        if not made:
            return
        in_syntax = {*words_of_syntax(cell.tree)}
        if made.keys() & in_syntax:
            return
        derived, meet = _derived(cell, names, made)
        running = {*lines_at_peak(cell, lives)}
        if trace.oom and trace.oom.line:
            running.add(trace.oom.line)
        done = (_finished(cell, one, derived, running) for one in made.values())
        if finished := [one for one in done if one and in_syntax.isdisjoint(one.names)]:
            yield self._let_go(cell, lives, max(finished, key=lambda d: lives.bytes(d.rows)))
            return
        rows = np.logical_or.reduce([one.rows for one in made.values()])
        if len(made) > 1 and not meet and lives.bytes(rows) >= _MOST * peak:
            yield self._apart(lives, list(made.values()), rows)

    def _let_go(self, cell: Code, lives: Lifetimes, done: _Finished) -> Advice:
        size, last = lives.bytes(done.rows), done.below.end_lineno
        dropped = ", ".join(done.names)
        advice = Advice(
            self.name,
            problem=f"{' and '.join(done.names)} hold{'' if len(done.names) > 1 else 's'} "
            f"{format_bytes(size)} of the peak; nothing below line {last} uses "
            f"{'them' if len(done.names) > 1 else 'it'}.",
            change=f"Write del {dropped} below line {last}, or keep the weights on the host "
            f"({done.names[0]}.cpu()).",
            line=last,
            name=done.names[0],
            size=size,
            saving=lives.saved_at_peak(done.rows),
            known=Known.ESTIMATED,
            price=f"no later line, nor cell, can use {dropped}",
        )
        return self.propose(cell, advice, partial(insert_after, cell, done.below, f"del {dropped}"))

    def _apart(self, lives: Lifetimes, made: list[_Made], rows: NDArray[np.bool_]) -> Advice:
        names, largest = [one.name for one in made], max(lives.bytes(one.rows) for one in made)
        size = lives.bytes(rows)
        return Advice(
            self.name,
            problem=f"{len(names)} models are on the device together, {format_bytes(size)} of the "
            f"peak: {', '.join(names[:-1])} and {names[-1]}. No statement computes with two of "
            "them.",
            change=f"Make one, use it, and let go of it before the next one is made (del "
            f"{names[0]}, and its optimizer, below its last use), or keep those that wait on the "
            "host (.cpu()).",
            name=names[0],
            size=size,
            saving=size - largest,
            known=Known.ESTIMATED,
        )


@dataclass(frozen=True, slots=True)
class _Made:
    """A model, the one statement that gives its name a value, and its storages at the peak: with
    its gradients, and the states of its optimizer."""

    name: str
    given: ast.stmt
    rows: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A model that nothing uses below a statement, and all names that lead to it."""

    names: list[str]
    below: ast.stmt
    rows: NDArray[np.bool_]


def _only_assignment(cell: Code, name: str) -> ast.stmt | None:
    given = [*cell.assigned(name)]
    if len(given) != 1:
        return None
    if isinstance(given[0], ast.For) and not isinstance(given[0].iter, _DISPLAYS):
        return None  # the loop's variable is what something else has made
    return given[0] if cell.loop(given[0]) is None else None


def _derived(
    cell: Code, names: Names, made: Mapping[str, _Made]
) -> tuple[Mapping[str, set[str]], bool]:
    """By name, the models that may be behind it; and whether a statement, or one pass of a loop,
    has to do with two of them."""
    found = {name: {name} for name in made}
    meet = False
    for statement in cell.nodes(ast.stmt):
        used = set[str]().union(*(found.get(name, ()) for name in _read(cell, statement)))
        listed = set[str]().union(*(found.get(name, ()) for name in _listed(cell, statement)))
        meet |= len(used) > 1
        for name in defined(statement) if not isinstance(statement, LOOPS) else ():
            own = used | listed if listed or _may_hold(cell, names, statement, name) else set[str]()
            if own:
                found[name] = found.get(name, set()) | own
    for statement in cell.nodes(ast.stmt):
        if isinstance(statement, LOOPS):
            inside = {name for part in statement.body for name in cell.spoken(part)}
            meet |= len(set[str]().union(*(found.get(name, ()) for name in inside))) > 1
    return found, meet


def _finished(
    cell: Code, model: _Made, derived: Mapping[str, set[str]], running: Iterable[int]
) -> _Finished | None:
    """The model, if the block that makes it is past its last use at the peak."""
    block, here = cell.block(model.given), cell.index(model.given)
    scope = cell.function(model.given)
    places = [cell.beside(s, model.given) for line in running if (s := cell.statement_at(line))]
    at = min((place for place in places if place is not None and place > here), default=None)
    names = [name for name, models in derived.items() if models == {model.name}]
    shared = [name for name, models in derived.items() if model.name in models and len(models) > 1]
    reads = [read for name in (*names, *shared) for read in cell.reads(name)]
    own = [cell.beside(read, model.given) for read in reads if cell.function(read) is scope]
    inside = any(cell.is_from_around(read, scope) for read in reads)
    if at is None or None in own or inside:
        return None
    last = max([here, *(place for place in own if place is not None)])
    return _Finished(names, block[last], model.rows) if last < at else None


def _may_hold(cell: Code, names: Names, statement: ast.stmt, name: str) -> bool:
    """Whether a model may be behind what a statement gives a name: a number, a tensor without a
    graph, or a list of what functions returned, has none."""
    if cell.function(statement) is not None or cell.nodes(ast.Lambda, within=statement):
        return True
    if name in names.tensors:
        return names.tensors[name].has_graph
    kind = names.others.get(name, "builtins.float")
    holds = kind in _HOLDING or not kind.startswith("builtins.")
    return name in names.modules or name in names.optimizers or holds


def _read(cell: Code, statement: ast.stmt) -> Iterator[str]:
    """The names that a statement itself reads; those that it only lists are apart."""
    for part in header(statement):
        for node in cell.nodes(ast.Name, within=part):
            if not isinstance(cell.parent(node), _DISPLAYS):
                yield node.id


def _listed(cell: Code, statement: ast.stmt) -> Iterator[str]:
    """The names that a statement gives another name to, or puts into a list."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
    changed = (
        [*value.args] if isinstance(value, ast.Call) and isinstance(statement, ast.Expr) else []
    )
    for part in (value, *changed):
        if isinstance(part, ast.Name):
            yield part.id
        for display in cell.nodes(*_DISPLAYS, within=part) if isinstance(part, _DISPLAYS) else ():
            yield from (n.id for n in ast.iter_child_nodes(display) if isinstance(n, ast.Name))
