"""Models set to evaluation that record a graph all the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.unused_graphs import (
    find_unused_graphs,
    how_to_wrap,
    without_graph,
)
from gpumem_magic.advice.rule import Rule
from gpumem_magic.advice.rules.removed_volatile import volatile_statements
from gpumem_magic.values.advice import Advice, Example
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    *[nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1)) for _ in range(10)],
    nn.Linear(512, 10),
).cuda()
x = torch.randn(4096, 512, device="cuda")
labels = torch.randint(0, 10, (4096,), device="cuda")
"""

_LOOP = """\
def evaluate(model, batches, criterion):
    model.eval()
    total, correct = 0.0, 0
    for images, targets in batches:
{body}
        total += loss.item()
        correct += (outputs.argmax(1) == targets).sum().item()
    return total / len(batches), correct

batches = list(zip(x.split(2048), labels.split(2048)))
loss, correct = evaluate(model, batches, nn.CrossEntropyLoss())
print(f"{{loss:.3f}}  {{correct}}")"""


class EvalIsNotNoGrad(Rule):
    """`model.eval()` does not stop autograd from recording.

    It changes what some layers compute: dropout lets everything through, batch normalisation uses
    its running statistics. Whether a graph is recorded, and activations are kept for it, does not
    depend on it. In evaluation use both: `model.eval()` for the right numbers, and
    `torch.no_grad()` (or `torch.inference_mode()`) for the memory.
    """

    name: ClassVar[str] = "eval-is-not-no-grad"
    problem: ClassVar[str] = "a model in evaluation mode saved activations for a backward pass"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before="model.eval()\nscores = model(x).softmax(1)  # for all of them",
            after="model.eval()\nwith torch.no_grad():\n"
            "    scores = model(x).softmax(1)  # for all of them",
            results=("scores",),
        ),
        Example(
            setup=_SETUP,
            before=_LOOP.format(
                body="        outputs = model(images)\n        loss = criterion(outputs, targets)"
            ),
            after=_LOOP.format(
                body="        with torch.no_grad():\n            outputs = model(images)\n"
                "        loss = criterion(outputs, targets)"
            ),
            results=("loss", "correct"),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        known = volatile_statements(cell)
        for graph in find_unused_graphs(trace, cell, names):
            if graph.in_evaluation and not known.intersection(graph.statements):
                advice = graph.advice(self.name)
                where = f" (line {graph.eval_line})" if graph.eval_line else ""
                problem = (
                    f"{advice.problem} eval(){where} changes what dropout and normalisation "
                    "compute; it does not keep autograd from recording."
                )
                advice = replace(advice, problem=problem, change=how_to_wrap(cell, graph))
                yield self.propose(cell, advice, partial(without_graph, cell, graph))
