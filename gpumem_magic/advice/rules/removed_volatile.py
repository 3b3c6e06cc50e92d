"""`volatile=True`, which PyTorch has ignored since version 0.4."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from gpumem_magic.advice import rewrite
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.definitions import defined
from gpumem_magic.advice.evidence.gradient_flow import GradientFlow
from gpumem_magic.advice.evidence.unused_graphs import (
    UnusedGraph,
    find_unused_graphs,
    without_graph,
)
from gpumem_magic.advice.rewrite import UnsafeError
from gpumem_magic.advice.rule import Rule
from gpumem_magic.values.advice import Advice, Edit, Example
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_VARIABLE = ("torch.autograd.Variable", "torch.autograd.variable.Variable", "Variable")
_SETUP = """\
import torch
from torch import nn
from torch.autograd import Variable
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(10)]).cuda()
data = torch.randn(4096, 512)
"""


class RemovedVolatile(Rule):
    """`Variable(x, volatile=True)` no longer keeps autograd from recording.

    Before PyTorch 0.4 a volatile input made everything computed from it free of a graph. The flag
    was removed with `Variable` itself: PyTorch prints a warning once, ignores it, and records, so
    that inference needs the memory of training. Use the tensor as it is, and put what reads it
    under `torch.no_grad()`. The numbers are the same.
    """

    name: ClassVar[str] = "removed-volatile"
    problem: ClassVar[str] = "volatile=True is ignored, and the forward pass is recorded"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before="inputs = Variable(data.cuda(), volatile=True)\noutput = model(inputs)",
            after="inputs = data.cuda()\nwith torch.no_grad():\n    output = model(inputs)",
            results=("output",),
        ),
        Example(
            setup=_SETUP,
            before="""\
def test(model, loader):
    model.eval()
    total = 0
    for batch in loader:
        batch = Variable(batch, requires_grad=False, volatile=True)
        out = model(batch)
        total += out.abs().sum().item()
    return total

total = test(model, data.cuda().split(2048))""",
            after="""\
def test(model, loader):
    model.eval()
    total = 0
    for batch in loader:
        with torch.no_grad():
            out = model(batch)
            total += out.abs().sum().item()
    return total

total = test(model, data.cuda().split(2048))""",
            results=("total",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        flags = _flags(cell)
        if not flags:
            return
        for graph in find_unused_graphs(trace, cell, names):
            behind = _behind(cell, names, graph)
            mine = [
                call
                for call in flags
                if cell.statement(call) in behind
                or any(_reads(cell, s, {cell.statement(call)}) for s in graph.statements)
            ]
            if mine:
                yield self._advice(cell, graph, mine)

    def _advice(self, cell: Code, graph: UnusedGraph, flags: list[ast.Call]) -> Advice:
        advice = graph.advice(self.name)
        advice = replace(
            advice,
            problem=f"volatile=True on line {flags[0].lineno} does nothing since PyTorch 0.4. "
            + advice.problem,
            change=f"Use the tensor itself, and wrap {graph.place} in torch.no_grad().",
            line=flags[0].lineno,
        )
        return self.propose(cell, advice, lambda: _rewritten(cell, graph, flags))


def volatile_statements(cell: Code) -> set[ast.stmt]:
    """Statements that read, right or by way of others, what is flagged as volatile."""
    flags = {cell.statement(call) for call in _flags(cell)}
    if not flags:
        return set()
    flow = GradientFlow(cell, Names())
    return flags | {
        node
        for node in cell.walk()
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return)
        and node.value is not None
        and (flags & flow.origin([node.value]).statements or _reads(cell, node, flags))
    }


def _reads(cell: Code, statement: ast.stmt, flags: set[ast.stmt]) -> bool:
    """Whether a statement reads a name that one of these sets, by whatever operation."""
    near = [flag for flag in flags if cell.function(flag) is cell.function(statement)]
    names = {name for flag in near for name in defined(flag)}
    return any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names
        for n in cell.walk(statement)
    )


def _behind(cell: Code, names: Names, graph: UnusedGraph) -> set[ast.stmt]:
    values = [v for s in graph.statements for v in ast.iter_child_nodes(s)]
    flow = GradientFlow(cell, names)
    found = flow.origin(v for v in values if isinstance(v, ast.expr)).statements
    return found | set(graph.statements)


def _flags(cell: Code) -> list[ast.Call]:
    """Calls of Variable with `volatile=True`."""
    return [
        call
        for call in cell.calls(*_VARIABLE)
        for keyword in call.keywords
        if keyword.arg == "volatile"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value
    ]


def _rewritten(cell: Code, graph: UnusedGraph, flags: list[ast.Call]) -> tuple[Edit, ...]:
    edits = [edit for call in flags for edit in _plain(cell, call)]
    return (*edits, *without_graph(cell, graph))


def _plain(cell: Code, call: ast.Call) -> tuple[Edit, ...]:
    """The tensor in place of `Variable(tensor, volatile=True)`; nothing where that is `x = x`."""
    others = [k for k in call.keywords if k.arg not in ("volatile", "requires_grad")]
    if len(call.args) != 1 or others or call.lineno != call.end_lineno:
        raise UnsafeError("the Variable has more arguments, or more lines, than expected")
    if any(
        k.arg == "requires_grad" and not (isinstance(k.value, ast.Constant) and not k.value.value)
        for k in call.keywords
    ):
        raise UnsafeError("the Variable asks for gradients as well")
    statement, inner = cell.statement(call), cell.text(call.args[0])
    if (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and len(statement.targets) == 1
        and isinstance(call.args[0], ast.Name)
        and cell.text(statement.targets[0]) == inner
    ):
        return rewrite.remove(cell, statement)
    atom = isinstance(call.args[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return rewrite.replace(cell, call, inner if atom else f"({inner})")
