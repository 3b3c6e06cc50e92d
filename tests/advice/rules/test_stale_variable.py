"""What a name of the iteration before holds is that alone, not the like of it that is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import torch
from torch import nn
wide = nn.Sequential(nn.Linear(64, 2048), nn.ReLU()).cuda()
x = torch.randn(8192, 64, device="cuda")"""
CARD = "84MiB"  # short of memory, and enough
CELL = """\
total = 0.0
for part in x.split(2048):
    with torch.no_grad():
        y = wide(part)
        total += y.mean().item()"""


def test_what_is_saved_is_what_the_changed_cell_saves(notebook):
    with notebook(CARD) as one:
        one.run(SETUP)
        before = one.measure(CELL)
        (advice,) = [each for each in before.advice if each.rule == "stale-variable"]
        after = one.measure(f"del y\n{CELL}\n    del y")
    saved = before.peak.allocated - after.peak.allocated
    assert advice.size == advice.saving == pytest.approx(saved, rel=0.02)
