"""A backward pass that fails, because an earlier one has used up a part of its graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.gradient_flow import backward_calls, goes_backward
from gpumem_magic.advice.evidence.passes import carried_names
from gpumem_magic.advice.rule import Case, Rule, mended
from gpumem_magic.advice.tree import Loop, lines_of
from gpumem_magic.values.advice import Advice, Edit, Example
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE
from gpumem_magic.values.names import GraphAgain, Names, variable_of
from gpumem_magic.values.recording import Cell

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
rnn = nn.GRU(64, 64, batch_first=True).cuda()
head = nn.Linear(64, 8).cuda()
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
data = torch.randn(4, 16, 20, 64)
"""
_CARRIED = """\
hidden = torch.zeros(1, 16, 64, device="cuda")
for x in data:
    out, hidden = rnn(x.cuda(), hidden)
    loss = head(out).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
last = loss.item()
"""
_TWO = """\
for x in data:
    out, _ = rnn(x.cuda())
    size = head(out).pow(2).mean()
    mean = head(out).mean().abs()
    optimizer.zero_grad()
    size.backward()
    mean.backward()
    optimizer.step()
"""


class GraphUsedTwice(Rule):
    """ "Trying to backward through the graph a second time": which name led to the old graph.

    `backward()` gives back the activations of its graph as it goes. The error comes where a later
    one meets such a graph again: through a state that goes on from pass to pass (`hidden`), through
    what was computed once before the loop, or as two losses of one forward pass go backward one
    after the other. `retain_graph=True`, which the error speaks of, keeps all graphs of all passes,
    so that memory and time grow with each. `detach()` what goes on; call `backward()` once, over
    the sum of the losses.
    """

    name: ClassVar[str] = "graph-used-twice"
    problem: ClassVar[str] = "a backward pass comes to a graph that an earlier one has used up"
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("    loss.backward()\n", "    loss.backward()\n    hidden = hidden.detach()\n"),
            setup=_SETUP,
            before=_CARRIED,
        ),
        mended(
            ("    size.backward()\n    mean.backward()\n", "    (size + mean).backward()\n"),
            setup=_SETUP,
            before=_TWO,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        again = names.again
        if again is None:
            return
        here = again.filename == cell.cell.filename
        code = cell if here else Code(Cell(again.source, again.filename))
        statement = code.statement_at(again.line)
        if statement is None:
            return
        told = _told(_Place(trace, cell, names, again, code, statement))
        if told is None:
            return
        place = f"line {again.line}" if here else f"{again.function}()"
        advice = Advice(
            self.name,
            problem=f"backward() in {place} fails: {told.problem}",
            change=told.change,
            line=again.line if here else None,
            name=told.name or None,
        )
        yield self.propose(cell, advice, lambda: told.edits) if here and told.edits else advice


@dataclass(frozen=True, slots=True)
class _Place(Case):
    """Where it failed. code: the cell, or the text of the function's own file."""

    again: GraphAgain
    code: Code
    statement: ast.stmt

    @property
    def loop(self) -> Loop | None:
        return self.code.loop(self.statement)

    def made_once(self, way: str) -> bool:
        """Whether what the way leads to is older than the loop of the cell that ran."""
        loop = self.loop if self.code is self.cell else None
        own = [n for n in range(len(self.lives)) if _root_way(self.lives.name(n) or "") == way]
        made = self.cell.calling_lines(self.lives)[own]
        inside = (made != BEFORE) if loop is None else np.isin(made, lines_of(loop))
        return bool(own) and not inside.any()


@dataclass(frozen=True, slots=True)
class _Told:
    problem: str
    change: str
    name: str = ""
    edits: tuple[Edit, ...] = ()


def _told(place: _Place) -> _Told | None:
    calls = [c for c in backward_calls(place.code) if any(_asks(k) for k in c.keywords)]
    if calls:
        return _of_gradients(place, calls[0])
    return _of_carried(place) or _of_pair(place) or _of_older(place)


def _asks(keyword: ast.keyword) -> bool:
    return keyword.arg == "create_graph"


def _of_gradients(place: _Place, call: ast.Call) -> _Told | None:
    """Gradients with a graph, to which the next pass adds its own."""
    code, loop = place.code, place.loop
    zeroing = [z for z in code.calls(".zero_grad") if loop is None or code.inside(z, loop)]
    if zeroing or loop is None or not code.inside(call, loop):
        return None
    return _Told(
        f"create_graph=True in line {call.lineno} leaves gradients with a graph, and each pass "
        "adds to those of the pass before, whose graph is used up.",
        "Set the gradients to None in each pass (zero_grad()); or take them from "
        "torch.autograd.grad(..., create_graph=True), which leaves none.",
    )


def _of_carried(place: _Place) -> _Told | None:
    """A name that goes on from pass to pass, or that each pass reads and none makes anew."""
    code, loop, again = place.code, place.loop, place.again
    ways = list(dict.fromkeys(map(_root_way, (*again.names, *again.ends))))
    carried = carried_names(code, loop) if loop is not None else set()
    own = [way for way in ways if way in carried]
    if own:
        summed = own[0] in again.ends
        return _carried(place, own[0], summed)
    kept = [way for way in map(_root_way, again.names) if _outlives(place, way)]
    kept = list(dict.fromkeys(sorted(kept, key=lambda way: ("." not in way, len(way)))))
    shared = [way for way in kept if "." in way] or kept
    return _carried(place, shared[0], summed=False) if shared else None


def _carried(place: _Place, name: str, summed: bool) -> _Told:
    if summed:
        return _Told(
            f"{name} goes on from pass to pass with the graphs of all passes before, which "
            "backward() has already used up.",
            f"Call backward() on what this pass adds to {name}, and add {name}.detach() up; or "
            "call backward() once, after the loop.",
            name,
            _detaching(place, name),
        )
    loop = place.loop
    once = loop is not None and "." not in name and not list(place.code.assigned(name, loop))
    if once or place.made_once(name):
        return _Told(
            f"{name} was computed once, before; the first backward() has used up its graph, and "
            "each pass goes through it again.",
            f"Compute {name} in each pass; or, where nothing behind it is trained, "
            f"{name} = {name}.detach() once.",
            name,
        )
    return _Told(
        f"{name} brings the graph of an earlier pass along, which that pass's backward() has used "
        "up.",
        f"Detach what goes on: {name} = {_detached(place, name)} after each backward(). (With "
        "retain_graph=True memory and time would grow from pass to pass.)",
        name,
        _detaching(place, name),
    )


def _detaching(place: _Place, name: str) -> tuple[Edit, ...]:
    """A line after the statement; none where the way begins at no name of this place."""
    code, statement = place.code, place.statement
    if code.function(statement) is not None and name.partition(".")[0] not in code.spoken():
        return ()
    end = code.span(statement)[1]
    rest = code.lines[(statement.end_lineno or statement.lineno) - 1][
        statement.end_col_offset or 0 :
    ]
    if rest.strip() and not rest.lstrip().startswith("#"):
        return ()
    end += len(rest)
    indentation = code.indentation(statement.lineno)
    return (Edit(end, end, f"\n{indentation}{name} = {_detached(place, name)}"),)


def _detached(place: _Place, name: str) -> str:
    parts = [way for way in place.again.names if _root_way(way) == name and way != name]
    return f"tuple(each.detach() for each in {name})" if parts else f"{name}.detach()"


def _root_way(way: str) -> str:
    """The way without its places in containers: "rnn.hidden" of "rnn.hidden[0]"."""
    return re.sub(r"(\[\d+\])+$", "", way)


def _outlives(place: _Place, way: str) -> bool:
    """Whether a pass does not make anew what the way begins at."""
    code, loop, root = place.code, place.loop, variable_of(way)
    if loop is not None:
        made = list(code.assigned(root, loop))
        read = root in code.spoken(loop) or "." in way
        return not made and read
    function = code.function(place.statement)
    declared = (n for node in code.nodes(ast.Global) for n in node.names)
    return function is not None and (root in declared or "." in way)


def _of_pair(place: _Place) -> _Told | None:
    """Two calls of one block, or of one pass, that go through the same forward pass."""
    code = place.code
    before = [call for call in _calls_before(place) if code.statement(call) is not place.statement]
    if not before:
        return None
    first = before[-1]
    shared = [way for way in place.again.names if "." not in way]
    through = f" through {shared[0]}" if len(shared) == 1 else ""
    steps = [
        step for step in code.calls(".step") if first.lineno < step.lineno < place.statement.lineno
    ]
    problem = (
        f"backward() in line {first.lineno} went{through} first, and used up the graph that both "
        "share."
    )
    if steps:
        return _Told(
            problem,
            "Detach what the first of the two is not to train (it is what both share); or compute "
            "it again for the second.",
        )
    losses = [goes_backward(call)[-1:] for call in (first, *_own_calls(place))]
    texts = [code.text(loss) for each in losses[:2] for loss in each]
    summed = " + ".join(texts) if len(texts) == 2 else "first + second"
    return _Told(
        problem,
        f"Call backward() once, over the sum: ({summed}).backward().",
        edits=_joined(place, first, summed) if len(texts) == 2 else (),
    )


def _calls_before(place: _Place) -> Iterator[ast.Call]:
    code = place.code
    for call in backward_calls(code):
        same = code.function(call) is code.function(place.statement)
        in_loop = place.loop is None or code.inside(call, place.loop)
        if same and in_loop and call.lineno <= place.statement.lineno:
            yield call


def _own_calls(place: _Place) -> list[ast.Call]:
    return [c for c in backward_calls(place.code) if place.code.inside(c, place.statement)]


def _joined(place: _Place, first: ast.Call, summed: str) -> tuple[Edit, ...]:
    """One call for two statements that follow one another, each but a plain call."""
    code, second = place.code, place.statement
    one = code.statement(first)
    plain = all(
        isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and not s.value.args
        and not s.value.keywords
        for s in (one, second)
    )
    if not plain or code.beside(one, second) != code.index(second) - 1:
        return ()
    return (Edit(code.span(one)[0], code.span(second)[1], f"({summed}).backward()"),)


def _of_older(place: _Place) -> _Told | None:
    """A loss of another cell, or of a line above that has gone backward already."""
    ends = [way for way in place.again.ends if way.isidentifier()]
    if not ends or place.loop is not None or place.code.function(place.statement) is not None:
        return None
    name = ends[0]
    if list(place.code.assigned(name)):
        return None
    return _Told(
        f"an earlier cell's backward() has used up the graph of {name}.",
        f"Run the forward pass again: what makes {name} belongs into this cell.",
        name,
    )
