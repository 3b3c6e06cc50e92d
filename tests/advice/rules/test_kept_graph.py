"""Two lists that hold the same graphs are one problem."""

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
