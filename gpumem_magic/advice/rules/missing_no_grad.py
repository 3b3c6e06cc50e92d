"""Inference that records a graph, where the model was set to evaluation and where it was not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.changes.no_grad import how_to_wrap, without_graph
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.unused_graphs import (
    UnusedGraph,
    find_unused_graphs,
)
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.rules.old_advice import volatile_readers
from gpumem_magic.values.advice import Advice, Example
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_MODEL = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(12)]).cuda()
x = torch.randn(4096, 512, device="cuda")
"""


class MissingNoGrad(Rule):
    """Inference without `torch.no_grad()` keeps what a backward pass would need.

    A forward pass saves its activations for `backward()`: of each layer, until the result is gone.
    Where no `backward()` ever comes, in evaluation or prediction, they are memory for nothing.
    Under `torch.no_grad()` each layer's output is freed as soon as the next layer has read it. The
    numbers are the same. `torch.inference_mode()` saves as much and is a little faster; its results
    cannot take part in a later training step.
    """

    name: ClassVar[str] = "missing-no-grad"
    problem: ClassVar[str] = "a forward pass saved activations that no backward pass ever used"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_MODEL,
            before="y = model(x)\nprint(y.shape)",
            after="with torch.no_grad():\n    y = model(x)\nprint(y.shape)",
            results=("y",),
        ),
        mended(
            (
                "        logits = model(batch)\n",
                "        with torch.no_grad():\n            logits = model(batch)\n",
            ),
            setup=_MODEL,
            before="""\
def predict(model, batches):
    found = []
    for batch in batches:
        logits = model(batch)
        found.append(logits.argmax(1).cpu())
    return torch.cat(found)

labels = predict(model, x.split(2048))""",
            results=("labels",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        for graph in _graphs(trace, cell, names):
            if not graph.in_evaluation:
                yield _without_graph(self, cell, graph)


_EVALUATED = """\
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
            setup=_EVALUATED,
            before="model.eval()\nscores = model(x).softmax(1)  # for all of them",
            after="model.eval()\nwith torch.no_grad():\n"
            "    scores = model(x).softmax(1)  # for all of them",
            results=("scores",),
        ),
        Example(
            setup=_EVALUATED,
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
        for graph in _graphs(trace, cell, names):
            if graph.in_evaluation:
                where = f" (line {graph.eval_line})" if graph.eval_line else ""
                yield _without_graph(
                    self,
                    cell,
                    graph,
                    f" eval(){where} changes what dropout and normalisation compute; it does not "
                    "keep autograd from recording.",
                )


def _graphs(trace: Trace, cell: Code, names: Names) -> Iterator[UnusedGraph]:
    """Unused graphs, but for those that `volatile=True` was to keep from being recorded."""
    known = set().union(*volatile_readers(cell, names).values())
    for graph in find_unused_graphs(trace, cell, names):
        if not known.intersection(graph.statements):
            yield graph


def _without_graph(rule: Rule, cell: Code, graph: UnusedGraph, why: str = "") -> Advice:
    advice = graph.advice(rule.name)
    advice = replace(advice, problem=advice.problem + why, change=how_to_wrap(cell, graph))
    return rule.propose(cell, advice, partial(without_graph, cell, graph))
