"""Gradient accumulation that keeps the graphs of all batches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.held_graphs import THEIR_NUMBER, HeldGraphs, find_held_graphs
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rewrite import UnsafeError, insert_before, remove, replace
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(4096, 256, device="cuda"), torch.randn(4096, 256, device="cuda")
"""


class GradientAccumulationWrong(Rule):
    """Gradient accumulation that saves nothing: one backward pass for the losses of many batches.

    Where losses are added up over small batches and `backward()` is called once, on the sum, the
    graph of every batch stays alive until then: as much memory as one large batch takes. Call
    `backward()` on each loss, divided by the number of batches where their mean is meant:
    gradients add up in `.grad`, and each graph is freed before the next one is built. The gradients
    are the same, up to rounding. For logging, add `loss.detach()`.
    """

    name: ClassVar[str] = "gradient-accumulation-wrong"
    problem: ClassVar[str] = "the graphs of all accumulated batches are alive until one backward"
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            (
                "    total_loss += loss  # over micro-batches\n",
                "    (loss / accumulation_steps).backward()\n"
                "    total_loss += loss.detach()  # over micro-batches\n",
            ),
            ("total_loss.backward()\n", ""),
            setup=_SETUP,
            before="""\
accumulation_steps = 8
optimizer.zero_grad()
total_loss = 0
for xb, yb in zip(x.chunk(accumulation_steps), y.chunk(accumulation_steps)):
    loss = F.mse_loss(model(xb), yb)
    total_loss += loss  # over micro-batches
total_loss = total_loss / accumulation_steps
total_loss.backward()
optimizer.step()
with torch.no_grad():
    final = model(x[:64]).cpu()""",
            results=("final", "total_loss"),
        ),
        mended(
            (
                "        for inputs, targets in micro_batches:\n",
                "        opt.zero_grad()\n        for inputs, targets in micro_batches:\n",
            ),
            (
                "            losses.append(F.mse_loss(model(inputs), targets))\n",
                "            batch_loss = F.mse_loss(model(inputs), targets)\n"
                "            (batch_loss / len(micro_batches)).backward()\n"
                "            losses.append(batch_loss.detach())\n",
            ),
            ("        opt.zero_grad()\n        loss.backward()\n", ""),
            setup=_SETUP,
            before="""\
def train_epoch(model, loader, opt, group=4):
    history = []
    for start in range(0, len(loader), group):
        micro_batches = loader[start : start + group]
        losses = []
        for inputs, targets in micro_batches:
            losses.append(F.mse_loss(model(inputs), targets))
        loss = torch.stack(losses).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
    return history

loader = list(zip(x.split(512), y.split(512)))
history = train_epoch(model, loader, optimizer)""",
            results=("history",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        for graphs in find_held_graphs(trace, cell):
            if graphs.saving < least_saving(trace):
                continue
            advice = Advice(
                self.name,
                f"The loop on line {graphs.loop.lineno} keeps the graphs of {graphs.rounds} "
                f"batches in {graphs.total}, {format_bytes(graphs.size)} at the peak, until one "
                f"backward() on line {graphs.backward.lineno}.",
                "Call backward() on each batch's loss inside the loop"
                + (f", divided by {graphs.divisor}." if graphs.divisor else "."),
                line=graphs.gather.lineno,
                name=graphs.total,
                size=graphs.size,
                saving=graphs.saving,
                known=Known.ESTIMATED,
                price="None: the same passes, and the same gradients up to rounding.",
            )
            yield self.propose(cell, advice, partial(_moved, cell, graphs))


def _moved(cell: Code, graphs: HeldGraphs) -> Iterator[Edit]:
    """`backward()` inside the loop. Raises UnsafeError where the graph may be needed later."""
    if graphs.divisor == THEIR_NUMBER:
        raise UnsafeError("how many there are is known only behind the last")
    passes = (".backward", "torch.autograd.grad")
    if any(True for s in graphs.between for _ in cell.calls(*passes, within=s)):
        raise UnsafeError("what stands between the loop and backward() needs the graph")
    if isinstance(graphs.value, ast.Name):
        loss = cell.text(graphs.value)
    else:
        loss = _free_name(cell)
        yield from insert_before(cell, graphs.gather, f"{loss} = {cell.text(graphs.value)}")
    part = f"({loss} / {_factor(graphs.divisor)})" if graphs.divisor else loss
    yield from insert_before(cell, graphs.gather, f"{part}.backward()")
    yield from replace(cell, graphs.value, f"{loss}.detach()")
    yield from _cleared_first(cell, graphs)
    yield from remove(cell, graphs.backward)


def _cleared_first(cell: Code, graphs: HeldGraphs) -> Iterator[Edit]:
    """Gradients cleared before the loop, where that came between the loop and `backward()`."""
    inside = cell.inside(graphs.backward, graphs.loop)
    for statement in graphs.loop.body if inside else graphs.between:
        clears = list(cell.calls(".zero_grad", within=statement))
        if not clears or (inside and clears[0].lineno > graphs.backward.lineno):
            continue
        if inside or not isinstance(statement, ast.Expr) or statement.value is not clears[0]:
            raise UnsafeError(f"gradients are cleared on line {clears[0].lineno}")
        yield from insert_before(cell, graphs.loop, cell.text(statement))
        yield from remove(cell, statement)


def _factor(divisor: str) -> str:
    """The text of a divisor, in parentheses where it needs them."""
    tree = ast.parse(divisor, mode="eval").body
    simple = isinstance(tree, (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript))
    return divisor if simple else f"({divisor})"


def _free_name(cell: Code) -> str:
    for name in ("batch_loss", "part_loss", "one_loss"):
        if name not in cell.source:
            return name
    raise UnsafeError("the names that it needs are taken")
