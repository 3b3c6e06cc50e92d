"""`retain_graph=True` where nothing goes through the graph a second time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.gradient_flow import GradientFlow, backward_calls, goes_backward
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_code import receiver
from gpumem_magic.advice.evidence.untrained_calls import UntrainedCall, untrained_calls
from gpumem_magic.advice.evidence.unused_graphs import freed_by_backward
from gpumem_magic.advice.rewrite import UnsafeError, remove_keyword
from gpumem_magic.advice.rule import Case, Rule, mended
from gpumem_magic.advice.tree import Loop, defined, header, lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known, Saves
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Phase

_SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(10)]).cuda()
data = torch.randn(3, 1024, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
"""
_LOOP = """\
for batch in data:
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch), batch)
    loss.backward({argument})  # else it raised an error
    optimizer.step()
last = loss.item()"""
_TWO_LOSSES = """\
class Learner:
    def __init__(self, model):
        self.model, self.head = model, nn.Linear(256, 8).cuda()
        torch.nn.init.constant_(self.head.weight, 0.01)
        torch.nn.init.zeros_(self.head.bias)

    def learn(self, batch):
        features = self.model(batch)
        reconstruction = F.mse_loss(features, batch)
        small = self.head(features).pow(2).mean()
        reconstruction.backward(retain_graph=True)
        small.backward({argument})
        return (reconstruction + small).detach(), features

learner = Learner(model)
for batch in data:
    optimizer.zero_grad()
    last, features = learner.learn(batch)
    optimizer.step()"""


_GAN = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
layers = lambda: [m for _ in range(6) for m in (nn.Linear(256, 256), nn.LeakyReLU())]
G, D = nn.Sequential(*layers()).cuda(), nn.Sequential(*layers(), nn.Linear(256, 1)).cuda()
for weight in [*G.parameters(), *D.parameters()]:
    nn.init.constant_(weight, 0.01)
of_g, of_d = (torch.optim.SGD(m.parameters(), lr=1e-2) for m in (G, D))
data = torch.ones(3, 4096, 256, device="cuda")
"""
_FAKES = """\
for real in data:
    fake = G(torch.full((4096, 256), 0.1, device="cuda"))
    loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    of_d.zero_grad()
    loss.backward(retain_graph=True)
    of_d.step()
    of_g.zero_grad()
    F.softplus(-D(fake)).mean().backward()
    of_g.step()
last = loss.item()"""


class RetainedGraph(Rule):
    """`backward(retain_graph=True)` keeps all activations after the backward pass.

    Without it `backward()` gives each activation back as soon as it has used it. With it they stay
    until the loss gets a new value or goes, so that the next forward pass is made beside them, and
    its peak holds two graphs. It is needed only where another `backward()` goes through the same
    graph: two losses of one forward pass (all but the last), a loss over several passes of a
    recurrent network that does not detach its state. Often it was added to silence the error
    "Trying to backward through the graph a second time"; there, `detach()` what is carried over, or
    what another optimizer trains: a GAN's discriminator reads `fake.detach()`.
    """

    name: ClassVar[str] = "retained-graph"
    problem: ClassVar[str] = "retain_graph=True keeps activations that no second backward reads"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before=_LOOP.format(argument="retain_graph=True"),
            after=_LOOP.format(argument=""),
            results=("last",),
        ),
        Example(
            setup=_SETUP,
            before=_TWO_LOSSES.format(argument="retain_graph=True"),
            after=_TWO_LOSSES.format(argument=""),
            results=("last",),
        ),
        mended(
            ("softplus(D(fake)).mean()\n", "softplus(D(fake.detach())).mean()\n"),
            ("loss.backward(retain_graph=True)", "loss.backward()"),
            setup=_GAN,
            before=_FAKES,
            results=("last",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        calls = list(backward_calls(cell))
        retaining = [call for call in calls if _retains(call)]
        if not retaining or _goes_twice(cell, calls):
            return
        if any(growth.graph and growth.holder for growth in trace.growth):
            return  # something carries the graph on, and the next backward pass may go through it
        if _reads_older_graph(cell, lives):
            return
        graphs = {call: _graph(cell, lives, names, call) for call in calls}
        sooner, last = freed_by_backward(lives), _freed_by_last(lives)
        lines, least = cell.calling_lines(lives), least_saving(trace)
        for call in retaining:
            loop = _of_one_graph(cell, call, graphs[call])
            if loop is None and _runs_more_often(cell, trace, call, graphs[call]):
                continue
            through = _undetached(cell, lives, names, call, graphs) if loop is None else []
            if not through and _is_needed(cell, call, graphs, loop):
                continue
            shared = {cell.statement(one.call) for one in through}
            own = np.isin(
                lines, [call.lineno, *(n for s in graphs[call].made - shared for n in lines_of(s))]
            )
            death = np.where(own, last if loop else sooner, lives.death)
            found = self._advice(cell, trace, call, death, least)
            if found is not None and through:
                yield self._with_detach(Case(trace, cell, names), found, through)
            elif found is not None:
                yield _of_last_pass(found, loop) if loop else found

    def _advice(
        self, cell: Code, trace: Trace, call: ast.Call, death: NDArray[np.int64], least: int
    ) -> Advice | None:
        lives = trace.lives
        levels, without = lives.levels(), replace(lives, death=death).levels()
        saving, saves = int(levels.max() - without.max()), Saves.PEAK
        if saving < least:
            saving, saves = int(levels[-1] - without[-1]), Saves.AFTER
        if saving < least:
            return None
        advice = Advice(
            self.name,
            problem=f"retain_graph=True on line {call.lineno} keeps at least "
            f"{format_bytes(saving)} of activations {_when(trace, saves)}, and no second backward "
            "pass reads them.",
            change="Leave out retain_graph=True.",
            line=call.lineno,
            size=saving,
            saving=saving,
            known=Known.ESTIMATED,
            saves=saves,
        )
        return self.propose(cell, advice, lambda: remove_keyword(cell, call, "retain_graph"))

    def _with_detach(self, case: Case, advice: Advice, through: list[UntrainedCall]) -> Advice:
        """What is told where the graph is needed only because it leads on into what another step
        trains."""
        one = through[0]
        model, steps = one.model, " and ".join(one.optimizers)
        advice = replace(
            advice,
            problem=f"backward() on line {one.backward.lineno} goes through {model} (line "
            f"{one.call.lineno}), which the step of {steps} does not change, and so needs "
            f"retain_graph=True: it keeps at least {format_bytes(advice.size or 0)} of activations "
            f"{_when(case.trace, advice.saves)}, which no second backward pass reads.",
            change=f"Compute that loss with .detach() of what {model} made, and leave out "
            "retain_graph=True.",
            edits=(),
            source=None,
            name=model,
        )
        return self.propose(case.cell, advice, lambda: _detaching(case.cell, case.names, through))


def _when(trace: Trace, saves: Saves) -> str:
    return "when memory ran out" if trace.oom and saves is Saves.AFTER else saves.value


def _undetached(
    cell: Code,
    lives: Lifetimes,
    names: Names,
    call: ast.Call,
    graphs: dict[ast.Call, _Graph],
) -> list[UntrainedCall]:
    """The calls of models that all of the graph which this pass and later ones share comes of, and
    whose weights the step after this pass leaves alone: a GAN's fake batch."""
    later = [g.made for c, g in graphs.items() if c is not call and _is_after(cell, c, call)]
    shared = graphs[call].made & frozenset().union(*later)
    if not shared or graphs[call].carried:
        return []
    calls = [u for u in untrained_calls(cell, lives, names) if u.backward is call and u.needed]
    return calls if {cell.statement(one.call) for one in calls} == shared else []


def _detaching(cell: Code, names: Names, through: list[UntrainedCall]) -> Iterator[Edit]:
    """The loss reads what the models made without its graph.

    Raises UnsafeError where the gradients that they get of it may be wanted, or where others read
    the same.
    """
    backward, flow = through[0].backward, GradientFlow(cell, names)
    following = (c for c in cell.calls(".backward") if c.lineno > backward.lineno)
    end = next((c.lineno for c in following), backward.lineno)
    cleared = (c for c in cell.calls(".zero_grad") if backward.lineno < c.lineno < end)
    if all(receiver(call, cell) in through[0].optimizers for call in cleared):
        raise UnsafeError("nothing clears the gradients that it leaves there")
    others = [c for c in cell.calls(".backward") if c is not backward]
    elsewhere = flow.origin(v for c in others for v in goes_backward(c)).statements
    made = {cell.statement(one.call) for one in through}
    given = {name for statement in made for name in defined(statement)}
    own = flow.origin(goes_backward(backward)).statements - elsewhere - made
    parts = [part for statement in own for part in header(statement)]
    reads = {read: None for part in parts for name in given for read in cell.reads(name, part)}
    if not reads:
        raise UnsafeError("it is not seen where it is read")
    for read in reads:
        yield Edit(cell.end(read), cell.end(read), ".detach()")
    yield from remove_keyword(cell, backward, "retain_graph")


def _of_last_pass(advice: Advice, loop: Loop) -> Advice:
    """What is told where all passes of a loop but the last need the graph."""
    return replace(
        advice,
        problem=advice.problem.replace(
            "and no second", f"also in the last pass of the loop on line {loop.lineno}: no further"
        ),
        change="Add up the losses in the loop, and call backward() once, below it: the gradients "
        "are the same. Or leave out retain_graph=True in its last pass.",
        edits=(),
        source=None,
    )


def _freed_by_last(lives: Lifetimes) -> NDArray[np.int64]:
    """When each storage would die if the last backward pass in its life freed what a forward pass
    recorded; others die when they do: int64 events."""
    born = lives.born == Phase.BACKWARD
    moments = np.sort(lives.birth[born])
    place = np.searchsorted(moments, lives.death) - 1
    rows = np.flatnonzero(lives.recorded & (lives.freed != Phase.BACKWARD) & (place >= 0))
    rows = rows[moments[place[rows]] > lives.birth[rows]]
    death = lives.death.copy()
    death[rows] = np.minimum(death[rows], moments[place[rows]] + 1)
    return death


@dataclass(frozen=True, slots=True)
class _Graph:
    """The statements that recorded what a call goes through. carried: some come from earlier passes
    of a loop."""

    made: frozenset[ast.stmt]
    carried: frozenset[ast.stmt]


def _graph(cell: Code, lives: Lifetimes, names: Names, call: ast.Call) -> _Graph:
    origin = GradientFlow(cell, names).origin(goes_backward(call))
    lines = np.unique(np.concatenate([cell.calling_lines(lives), lives.line])[_twice(lives)])
    recording = {s for n in lines.tolist() if n > 0 and (s := cell.statement_at(n)) is not None}
    own = {cell.statement(call)}
    return _Graph(
        frozenset((origin.statements | own) & recording), frozenset(origin.carried & recording)
    )


def _twice(lives: Lifetimes) -> NDArray[np.bool_]:
    return np.concatenate([lives.recorded, lives.recorded])


def _retains(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and any(
        keyword.arg == "retain_graph"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )


def _goes_twice(cell: Code, calls: list[ast.Call]) -> bool:
    """Whether the cell differentiates gradients, or goes backward in ways that this cannot see."""
    keywords = {k.arg for call in calls for k in call.keywords}
    hooks = cell.calls(".register_hook", ".register_full_backward_hook")
    return bool(keywords & {"create_graph", None, "inputs"}) or bool(hooks)


def _of_one_graph(cell: Code, call: ast.Call, graph: _Graph) -> Loop | None:
    """The outermost loop around a call whose passes all go through what was made before it."""
    found, around = None, cell.loop(call)
    while around is not None:
        lines = lines_of(around)
        own = (s for s in graph.made if cell.function(s) is cell.function(call))
        if any(statement.lineno not in lines for statement in own):
            found = around
        around = cell.loop(around)
    return found


def _is_needed(
    cell: Code, call: ast.Call, graphs: dict[ast.Call, _Graph], loop: Loop | None
) -> bool:
    """Whether another pass goes, or may go, through a part of the graph after this call; loop:
    after that, whose passes all go through one graph."""
    own, function = graphs[call], cell.function(call)
    if not own.made or own.carried:
        return True
    if function is not None and any(cell.function(statement) is None for statement in own.made):
        return True  # of the notebook's own level: each call of the function may go through it
    if loop is not None and cell.calls(".step", within=loop):
        return True  # the weights change between the passes
    place = loop or cell.statement(call)
    if cell.loop(place) is None and function is None and not _steps_after(cell, place):
        return True  # the next cell may go through it again
    return any(
        _is_after(cell, other, call) and (own.made & graph.made)
        for other, graph in graphs.items()
        if other is not call
    )


def _runs_more_often(cell: Code, trace: Trace, call: ast.Call, graph: _Graph) -> bool:
    """Whether one run of a statement that recorded was for several backward passes."""
    counts = {line.number: line.count for line in trace.lines}
    runs = max(counts.get(n, 0) for n in lines_of(cell.statement(call)))
    made = (s for s in graph.made if s is not cell.statement(call))
    return any(0 < max(counts.get(n, 0) for n in lines_of(s)) < runs for s in made)


def _reads_older_graph(cell: Code, lives: Lifetimes) -> bool:
    """Whether the cell uses a value of an earlier one that carries a graph: each backward pass may
    go through that."""
    older = np.flatnonzero(lives.graph & (lives.line == BEFORE)).tolist()
    roots = {re.split(r"\W", lives.name(row) or "", maxsplit=1)[0] for row in older}
    return any(not list(cell.assigned(root)) for root in roots & cell.spoken())


def _is_after(cell: Code, other: ast.Call, call: ast.Call) -> bool:
    """Whether one call may run after another before the graph is made anew."""
    if cell.function(other) is not cell.function(call):
        return True
    return (other.lineno, other.col_offset) > (call.lineno, call.col_offset) or (
        cell.loop(other) is not cell.loop(call)
    )


def _steps_after(cell: Code, place: ast.stmt) -> bool:
    """Whether the weights change after a statement: then the graph is of no more use."""
    block = cell.block(place)
    return any(
        step.lineno > place.lineno and cell.block(cell.statement(step)) is block
        for step in cell.calls(".step")
    )
