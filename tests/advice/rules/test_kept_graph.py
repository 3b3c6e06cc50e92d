"""Two lists that hold the same graphs are one problem; what holds none is no problem."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]).cuda()
data = torch.randn(6, 1024, 256, device="cuda")"""
CELL = """\
outputs, losses = [], []
for batch in data:
    output = model(batch)
    outputs.append(output)
    losses.append(output.pow(2).mean())
print(torch.stack(losses).mean(), torch.cat(outputs).shape)"""


def test_lists_that_hold_the_same_graphs_are_mended_together(notebook):
    with notebook() as one:
        one.run(SETUP)
        before = one.measure(CELL)
        (advice,) = [a for a in before.advice if a.rule == "kept-graph"]
        assert "outputs (line 5) and losses (line 6)" in advice.problem
        assert advice.source.count(".detach()") == 2
        del before
    with notebook() as other:
        other.run(SETUP)
        (proven,) = other.assess(CELL, "kept-graph").advice
        assert proven.saving > 20 << 20


STEP = """\
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]).cuda()
world = torch.zeros(1024, 256, device="cuda")

def tick():
    global world
    world = world + model(world)
    return world.mean().item()

def train(batches):
    losses = []
    for batch in batches:
        losses.append(model(batch).pow(2).mean())
    torch.stack(losses).mean().backward()"""
OF_OTHERS = {
    "numbers that an earlier function returns": "seen = [tick() for _ in range(12)]",
    "what a function is given": "train([torch.randn(1024, 256, device='cuda') for _ in range(16)])",
}


@pytest.mark.parametrize("cell", OF_OTHERS.values(), ids=OF_OTHERS)
def test_graphs_that_others_keep_are_not_the_comprehensions(notebook, cell):
    with notebook("100MiB") as one:
        one.run(STEP)
        report = one.measure(cell)
        assert report.advice
        assert "kept-graph" not in {each.rule for each in report.advice}


VALIDATED = """\
def validate():
    total = 0
    for _ in range(6):
        total += model(torch.randn(1024, 256, device="cuda")).pow(2).mean()
    return (total / 6).item()"""


def test_a_comprehension_of_numbers_holds_no_graphs(notebook):
    with notebook("100MiB") as one:
        one.run(f"{SETUP}\n{VALIDATED}")
        report = one.measure("losses = [validate() for epoch in range(2)]")
        (growth,) = [each for each in report.advice if each.rule == "growth"]
        assert "comprehension" not in growth.problem
