"""A new model beside the old one of the same name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rewrite import insert_before
from gpumem_magic.advice.rule import Rule
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names, owner_of
from gpumem_magic.values.recording import Category

_HELD = re.compile(r"(\w+)\.param_groups\b")

_NET = """\
import torch
from torch import nn

def build(width=1536, depth=4):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])

x = torch.ones(16, 1536, device="cuda")
"""
_SCRIPT = """\
model = build().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(x).square().mean()
loss.backward()
optimizer.step()"""
_CLASS = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(1536, 1536) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

net = Net().to("cuda")
outputs = net(x).detach()"""


class SecondModel(Rule):
    """A cell that is run again builds a new model while the old one of that name is still there.

    `model = Net().cuda()` first builds the new model and only then lets go of the old one; an
    optimizer keeps the old parameters, with their gradients and its states, until it is replaced as
    well. For that moment both are on the device. `model = None` above it lets go first, and does
    nothing on the first run; so does `del model`, which fails there.
    """

    name: ClassVar[str] = "second-model"
    problem: ClassVar[str] = "a new model is built while the old one of its name is alive"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_NET,
            earlier=(_SCRIPT,),
            before=_SCRIPT,
            after=f"model = optimizer = loss = None\n{_SCRIPT}",
            results=("loss",),
        ),
        Example(
            setup=_NET,
            earlier=(_CLASS,),
            before=_CLASS,
            after=_CLASS.replace("net = Net", "net = None\nnet = Net"),
            results=("outputs",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        for built in _built(cell, lives, least_saving(trace)):
            advice = self._let_go_first(trace, lives, built, cell, names)
            if advice is not None:
                yield advice

    def _let_go_first(
        self,
        trace: Trace,
        lives: Lifetimes,
        built: _Built,
        cell: Code,
        names: Names,
    ) -> Advice | None:
        let_go = [built.name, *_others(built, cell, names)]
        lines = {n for name in let_go for n in _lines_of(cell, name)}
        freed = built.old & np.isin(lives.freed_line, list(lines))
        if trace.oom is not None and trace.oom.line in lines_of(built.statement):
            freed = built.old  # all of it was to go when the new one was complete
        holder = _holder(lives, built) if not freed.any() else None
        if holder is not None and (holder in let_go or holder not in names.optimizers):
            return None
        old = built.old & lives.at_end if holder is not None else freed
        saving = _saved(lives, old)
        if saving < least_saving(trace):
            return None
        names_text = " = ".join([built.name, holder] if holder else let_go)
        advice = Advice(
            self.name,
            problem=(
                f"line {built.statement.lineno} builds {built.name} while the old one is still on "
                f"the device: {format_bytes(lives.bytes(old))} of parameters, gradients and states."
            ),
            change=f"Write {names_text} = None above line {built.statement.lineno}.",
            line=built.statement.lineno,
            name=built.name,
            size=lives.bytes(old),
            saving=saving,
            known=Known.EXACT,
        )
        if holder is not None:
            kept = f" {holder}, which this cell does not replace, keeps the old parameters."
            return replace(advice, change=advice.change + kept)
        edit = partial(insert_before, cell, built.statement, f"{names_text} = None")
        return self.propose(cell, advice, edit)


@dataclass(frozen=True, slots=True)
class _Built:
    """A statement that gives a name a new model. old: storages of the one that it had, alive when
    the new one was complete."""

    name: str
    statement: ast.stmt
    old: NDArray[np.bool_]


def _held_at_start(lives: Lifetimes) -> Mapping[str, list[int]]:
    """By variable, the storages that belonged to it before the cell; an optimizer's states belong
    to the model."""
    named = {label.address: label.name for label in lives.labels if label.position == 0}
    found: dict[str, list[int]] = {}
    for i in np.flatnonzero(lives.line == BEFORE).tolist():
        name = named.get(int(lives.address[i])) or ""
        if owner := owner_of(name):
            found.setdefault(owner, []).append(i)
    return found


def _built(cell: Code, lives: Lifetimes, least: int) -> Iterator[_Built]:
    """Models built anew whose old ones had as many bytes as are worth a word."""
    held = _held_at_start(lives)
    large = {name: old for name, old in held.items() if int(lives.size[old].sum()) >= least}
    if not large:
        return
    born = lives.stack[lives.of(Category.PARAMETER) & (lives.birth >= 0) & (lives.stack >= 0)]
    stacks = (lives.stacks[stack] for stack in np.unique(born).tolist())
    running = {cell.statement_at(line) for line in cell.lines_in(*stacks)}
    for statement in cell.tree.body:
        if statement not in running:
            continue
        for target in _targets(statement):
            if target.id in large and not _is_read_before(cell, target.id, statement):
                yield from _built_by(statement, target.id, cell, lives, large[target.id])


def _targets(statement: ast.stmt) -> Iterator[ast.Name]:
    """The names that an assignment sets: `a`, `a: Type`, or each of `a, b`."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        first = statement.targets[0]
        targets = list(first.elts) if isinstance(first, ast.Tuple) else [first]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    yield from (target for target in targets if isinstance(target, ast.Name))


def _built_by(
    statement: ast.stmt, name: str, cell: Code, lives: Lifetimes, held: list[int]
) -> Iterator[_Built]:
    born = lives.of(Category.PARAMETER) & cell.born_in(statement, lives) & (lives.death > 0)
    new = np.flatnonzero(born)
    mine = np.zeros(len(lives), bool)
    mine[held] = True
    if len(new) and (mine & lives.of(Category.PARAMETER)).any():
        complete = int(lives.birth[new].max())
        if (mine & lives.alive(complete)).any():
            yield _Built(name, statement, mine & lives.alive(complete))


def _is_read_before(cell: Code, name: str, statement: ast.stmt) -> bool:
    """Whether the cell may use the old value: before the end of the statement, or in a function."""
    end = lines_of(statement).stop
    return any(read.lineno < end or cell.is_from_around(read, None) for read in cell.reads(name))


def _others(built: _Built, cell: Code, names: Names) -> Iterator[str]:
    """Names that the cell gives new values below, which may hold the old model until then."""
    holding = {
        *(*names.modules, *names.optimizers, *names.containers),
        *(*names.others, *(name for name, tensor in names.tensors.items() if tensor.has_graph)),
    }
    seen = {built.name}
    for statement in cell.tree.body:
        cell.work.spend(1)
        if statement.lineno <= built.statement.lineno or not isinstance(statement, ast.Assign):
            continue
        for target in statement.targets:
            if not isinstance(target, ast.Name) or target.id in seen or target.id not in holding:
                continue
            seen.add(target.id)
            if not _is_read_before(cell, target.id, statement):
                yield target.id


def _lines_of(cell: Code, name: str) -> Iterator[int]:
    for statement in cell.assigned(name):
        if cell.function(statement) is None:
            yield from lines_of(statement)


def _holder(lives: Lifetimes, built: _Built) -> str | None:
    """The optimizer that keeps the old parameters after the cell."""
    for i in np.flatnonzero(built.old & lives.at_end & lives.of(Category.PARAMETER)).tolist():
        match = _HELD.match(lives.name(i) or "")
        return match[1] if match else None
    return None


def _saved(lives: Lifetimes, old: NDArray[np.bool_]) -> int:
    """How much lower the peak is with the old storages freed first; they were there before."""
    now, then = lives.levels(), lives.levels(old)
    return int(now.max() - max(now[0], then[1:].max(initial=0)))
