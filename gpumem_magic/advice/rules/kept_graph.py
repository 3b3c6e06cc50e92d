"""Sums and lists that keep the graph of every pass."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.accumulations import (
    Accumulation,
    find_accumulations,
    goes_on,
    is_only_a_number,
)
from gpumem_magic.advice.evidence.gradient_flow import GradientFlow, used_statements, with_graph
from gpumem_magic.advice.evidence.passes import carried_names, passes_of, piled_up
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.unused_graphs import left_for_later
from gpumem_magic.advice.rewrite import UnsafeError, enclose
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import FUNCTIONS, lines_of, root
from gpumem_magic.trace.growth.ways import without_places
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Growth, Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names

_LOSSES = ("torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss", "_loss")
_MOVES = ("to", "cuda", "float", "half", "double", "contiguous")
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]).cuda()
data = torch.randn(7, 1024, 256, device="cuda")
"""
_TRAINING = """\
class Trainer:
    def __init__(self, model):
        self.model, self.history = model, []
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train_step(self, batch):
        penalty = self.model(batch + 0.1).pow(2).mean()  # watched, not trained on
        loss = F.mse_loss(self.model(batch), batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), penalty

    def fit(self, batches):
        for batch in batches:
            loss, penalty = self.train_step(batch)
            self.history.append({kept})

trainer = Trainer(model)
trainer.fit(data)
last = float(trainer.history[-1])"""


class KeptGraph(Rule):
    """A sum or a list of results keeps the graph of every pass of the loop.

    A loss or an output is not just its number: it holds the graph that it was computed by, and with
    it the activations of that forward pass, until `backward()` has used them. Added to a running
    total, or appended to a list, the graphs of all passes stay alive together, and memory grows
    with every pass. Keep `loss.item()` where only the number is wanted, `output.detach()` where the
    tensor is. `.item()` waits for the GPU once in each pass. Where nothing is trained at all,
    `torch.no_grad()` around the forward pass saves more.
    """

    name: ClassVar[str] = "kept-graph"
    problem: ClassVar[str] = "a sum or a list keeps the graphs of all passes of a loop"
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("total += loss  # of all batches", "total += loss.item()  # of all batches"),
            setup=_SETUP,
            before="""\
total = 0.0
for batch in data:
    loss = F.mse_loss(model(batch), batch)
    total += loss  # of all batches
print(f"mean loss {total / len(data):.4f}")""",
            results=("total",),
        ),
        Example(
            setup=_SETUP,
            before=_TRAINING.format(kept="penalty"),
            after=_TRAINING.format(kept="penalty.detach()"),
            results=("last",),
        ),
        Example(
            setup=_SETUP,
            before="outputs = [model(batch) for batch in data]",
            after="outputs = [model(batch).detach() for batch in data]",
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        return cell.once(_all_kept, trace, names)

    def kept(self, trace: Trace, cell: Code, names: Names) -> Iterator[Advice]:
        """What a look at the cell finds; `find` looks once, for the rule of growth, too."""
        lives = trace.lives
        found = list(find_accumulations(cell))
        if not found or not lives.recorded.any():
            return
        piles = _piles(trace, cell, lives)
        if not piles:
            return
        needed = used_statements(cell, lives, names) | left_for_later(trace, cell, names)
        flow = GradientFlow(cell, names)
        behind = {
            one: lines
            for one in found
            if one.statement not in needed and next(with_graph(one.value), None) is not None
            if not (one.sums and goes_on(cell, one)) and not _is_carried(cell, one)
            if not has_no_graph(cell, one.value)
            if (lines := _lines_behind(one, flow) & piles.keys())
            if cell.loop(one.statement) or lines & {*lines_of(one.value)}
        }
        for group in _of_same_graphs(behind):
            grown = [g for g in trace.growth if any(is_same(o.target, g.holder) for o in group)]
            if any(not g.graph for g in grown):
                continue  # a backward pass has freed the graphs
            kept = np.zeros(len(lives), bool)
            for line in set().union(*(behind[one] for one in group)):
                kept |= piles[line]
            for growth in (g for g in trace.growth if g.holder and g not in grown):
                if not growth.graph or _goes_on_beside(cell, group, growth):
                    kept[list(growth.rows)] = False
            saving = lives.saved_at_peak(kept)
            if saving >= least_saving(trace):
                made_before = (g.size for g in grown)  # and is saved all the same
                size = max(lives.bytes(kept), *made_before, 0)
                yield self._advice(cell, names, group, size, saving)

    def _advice(
        self, cell: Code, names: Names, group: list[Accumulation], size: int, saving: int
    ) -> Advice:
        methods = {one: _method(cell, names, one) for one in group}
        values = " and ".join(cell.text(one.value) for one in group)
        kept = " and ".join(_changed(cell, one.value, methods[one]) for one in group)
        holders = " and ".join(f"{one.target} (line {one.value.lineno})" for one in group)
        several = len(group) > 1
        advice = Advice(
            self.name,
            problem=f"{holders} keep{'' if several else 's'} the graphs of all passes of the "
            f"loop, {format_bytes(size)} at the peak: {values} hold{'' if several else 's'} the "
            f"activations that {'they were' if several else 'it was'} computed from.",
            change=f"Keep {kept} instead.",
            line=group[0].value.lineno,
            name=group[0].target,
            size=size,
            saving=saving,
            known=Known.ESTIMATED,
            price="it waits for the GPU once in each pass" if "item" in methods.values() else "",
        )
        return self.propose(
            cell,
            advice,
            lambda: tuple(e for one in group for e in _edits(cell, names, one, methods[one])),
        )


def _all_kept(cell: Code, trace: Trace, names: Names) -> tuple[Advice, ...]:
    return tuple(KeptGraph().kept(trace, cell, names))


def _is_carried(cell: Code, one: Accumulation) -> bool:
    """Whether the loop goes on with what is collected: its graph is there without that, too."""
    loop, name = cell.loop(one.statement), getattr(one.value, "id", "")
    return loop is not None and name in carried_names(cell, loop)


def has_no_graph(cell: Code, value: ast.expr) -> bool:
    """Whether it is what functions of this cell or of earlier ones return, all of it numbers or
    detached."""
    code, _ = cell.joined() or (cell, None)
    given = _assigned(cell, value) if isinstance(value, ast.Name) else [value]
    returned = [each for one in given for each in _returned(code, one)]
    return bool(returned) and all(next(with_graph(each), None) is None for each in returned)


def _goes_on_beside(cell: Code, group: Sequence[Accumulation], growth: Growth) -> bool:
    """Whether a loop around what is collected also carries what grew on, by its own name."""
    name = growth.name
    loops = (loop for one in group if (loop := cell.loop(one.statement)) is not None)
    return any(name in carried_names(cell, loop) for loop in loops)


def is_same(target: str | None, holder: str | None) -> bool:
    """Whether what is collected in `target` is held by what grew under the name `holder`: the same
    container, whatever the places in it, or one of an object, which may call itself `self`."""
    plain = without_places(target or "")
    found = without_places(holder or "").rpartition("().")[2].removesuffix(".flat")
    if plain.startswith("self."):
        own = plain.removeprefix("self")
        return found.endswith(own) or f"{own}." in found
    return bool(plain) and f"{found}.".startswith(f"{plain}.")


def tells_of(grown: Advice, kept: Advice) -> bool:
    """Whether what is told as what grew is what keeps the graphs: by its name, or, where it has
    none as yet, by the line that builds it."""
    nameless = grown.name is None and grown.line is not None
    return grown.line == kept.line if nameless else is_same(kept.name, grown.name)


def _of_same_graphs(behind: Mapping[Accumulation, set[int]]) -> list[list[Accumulation]]:
    """Those that hold the same graphs together: to mend one of them alone would free nothing."""
    groups: list[list[Accumulation]] = []
    for one, lines in behind.items():
        same = [g for g in groups if any(lines & behind[other] for other in g)]
        groups = [g for g in groups if g not in same]
        groups.append([*(other for g in same for other in g), one])
    return groups


def _piles(trace: Trace, cell: Code, lives: Lifetimes) -> dict[int, NDArray[np.bool_]]:
    """By line, what its earlier passes made and the peak still held."""
    lines = cell.calling_lines(lives)
    recorded = lives.recorded & (lines > 0)
    counts = {each.number: each.count for each in trace.lines}
    alive = recorded & lives.at_peak
    held = np.bincount(lines[alive], lives.size[alive])
    found = {}
    for line in np.flatnonzero(held >= MIB).tolist():
        own = recorded & (lines == line)
        passes = passes_of(lives, cell, counts, line, own)
        piled = piled_up(lives, own, passes)
        if lives.bytes(piled) >= MIB:
            found[line] = piled
    return found


def _lines_behind(one: Accumulation, flow: GradientFlow) -> set[int]:
    """Lines that the value may come from, its own among them."""
    statements = flow.origin([one.value]).statements
    simple = (lines_of(s) for s in statements if not hasattr(s, "body"))
    computed = any(_computes(node) for node in with_graph(one.value))
    own = lines_of(one.value) if computed else ()  # else others' of that line would be its own
    return {line for lines in (own, *simple) for line in lines}


def _computes(node: ast.AST) -> bool:
    """Whether it is an operator or a call, other than one that only moves or converts a tensor."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr not in _MOVES
    return isinstance(node, ast.Call | ast.BinOp)


def _method(cell: Code, names: Names, one: Accumulation) -> str:
    """ "item" for a scalar of which only the number is wanted, else "detach"."""
    scope = cell.function(one.statement)
    plain = one.target == one.name and is_only_a_number(cell, one.name, scope)
    inside = scope is not None and any(
        isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(scope)
    )
    return "item" if plain and not inside and _is_scalar(cell, names, one.value) else "detach"


def _is_scalar(
    cell: Code, names: Names, value: ast.expr, seen: frozenset[ast.expr] = frozenset()
) -> bool:
    """Whether a value is a loss, or a mean or sum of everything. seen: what is made of it, as the
    state of a loop is made of itself."""
    if value in seen:
        return False
    seen |= {value}
    if isinstance(value, ast.BinOp):
        return _is_scalar(cell, names, value.left, seen) or _is_scalar(
            cell, names, value.right, seen
        )
    if isinstance(value, ast.Attribute):
        return value.attr == "loss"
    if isinstance(value, ast.Name):
        facts = names.tensors.get(value.id)
        if facts is not None and cell.function(value) is None:
            return facts.shape == ()
        return any(_is_scalar(cell, names, v, seen) for v in _assigned(cell, value))
    if isinstance(value, ast.Call):
        returned = [v for v in _returned(cell, value) if v is not value]
        if returned:
            return all(_is_scalar(cell, names, v, seen) for v in returned)
        called = cell.dotted(value.func)
        kind = names.modules[called].type if called in names.modules else called
        if ".loss." in kind or kind.endswith(_LOSSES):
            return True
        method = isinstance(value.func, ast.Attribute) and value.func.attr in ("mean", "sum")
        return method and not value.args and not value.keywords
    return False


def _assigned(cell: Code, name: ast.Name) -> Iterator[ast.expr]:
    """The values that a name gets in its function; what functions of the cell return for it."""
    for statement in cell.assigned(name.id):
        if isinstance(statement, ast.Assign) and cell.function(statement) is cell.function(name):
            for value in _returned(cell, statement.value):
                yield from _matching(statement.targets[0], value, name.id)


def _returned(cell: Code, value: ast.expr) -> Iterator[ast.expr]:
    """The value, or what the function of the cell returns that it calls."""
    called = root(value) if isinstance(value, ast.Call) else ""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        called = value.func.attr
    own = [f for f in cell.walk() if isinstance(f, FUNCTIONS) and f.name == called]
    if not own:
        yield value
    for function in own:
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield node.value


def _matching(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    """The part of a value that an assignment gives to this name."""
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from _matching(one, part, name)


def _is_tensor(cell: Code, names: Names, one: Accumulation) -> bool:
    """Whether the value surely has a method `detach`."""
    value = one.value
    if _is_scalar(cell, names, value) or isinstance(value, ast.BinOp) or one.sums:
        return True
    if isinstance(value, ast.Attribute) and value.attr in ("logits", "last_hidden_state"):
        return True
    if isinstance(value, ast.Name) and value.id in names.tensors:
        return True
    if names.containers.get(one.name) and one.target == one.name:
        return True
    if any(_joins(cell, read) for read in cell.reads(one.name)):
        return True
    return isinstance(value, ast.Call) and _is_sequence(names, cell.dotted(value.func))


def _is_sequence(names: Names, called: str) -> bool:
    found = names.modules.get(called)
    return found is not None and found.type.startswith("torch.nn.modules.")


def _joins(cell: Code, read: ast.expr) -> bool:
    call = cell.parent(read)
    joins = ("torch.cat", "torch.stack", "torch.concat", "torch.vstack")
    return isinstance(call, ast.Call) and cell.dotted(call.func) in joins


def _changed(cell: Code, value: ast.expr, method: str) -> str:
    text = cell.text(value)
    return f"{text}.{method}()" if isinstance(value, _ATOMS) else f"({text}).{method}()"


def _edits(cell: Code, names: Names, one: Accumulation, method: str) -> tuple[Edit, ...]:
    if method == "detach" and not _is_tensor(cell, names, one):
        raise UnsafeError("what the model returns may be no tensor")
    if isinstance(one.value, _ATOMS):
        end = cell.end(one.value)
        return (Edit(end, end, f".{method}()"),)
    return enclose(cell, one.value, "(", f").{method}()")
