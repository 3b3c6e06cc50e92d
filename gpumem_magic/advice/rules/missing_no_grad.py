"""Inference that records a graph."""

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
        Example(
            setup=_MODEL,
            before="""\
def predict(model, batches):
    found = []
    for batch in batches:
        logits = model(batch)
        found.append(logits.argmax(1).cpu())
    return torch.cat(found)

labels = predict(model, x.split(2048))""",
            after="""\
def predict(model, batches):
    found = []
    for batch in batches:
        with torch.no_grad():
            logits = model(batch)
        found.append(logits.argmax(1).cpu())
    return torch.cat(found)

labels = predict(model, x.split(2048))""",
            results=("labels",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        known = volatile_statements(cell)
        for graph in find_unused_graphs(trace, cell, names):
            if not graph.in_evaluation and not known.intersection(graph.statements):
                advice = replace(graph.advice(self.name), change=how_to_wrap(cell, graph))
                yield self.propose(cell, advice, partial(without_graph, cell, graph))
