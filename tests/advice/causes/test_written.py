"""Cells as people write and report them, written without a look at the rules; each with words of its cause.

A part of a file is "# %% name | card | words of the cause", perhaps with a cell that ran before.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

SETUP = """\
import copy, functools, collections, types, math, numpy as np
from dataclasses import dataclass, field
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
device = torch.device("cuda")
net = nn.Sequential(
    nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(),
    nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256),
).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
X = torch.zeros(100*512, 256); Y = torch.zeros(100*512, 256)
loader = DataLoader(TensorDataset(X, Y), batch_size=512)
criterion = nn.MSELoss()
class progress:
    def __init__(self, it, desc=""): self.it = it
    def __iter__(self): return iter(self.it)
    def __enter__(self): return self
    def __exit__(self, *error): return False
    def set_postfix(self, **told): pass
"""

NOT_NAMED = frozenset(
    {"from-numpy-flat", "pandas-values-gp"}
    | {"generator-and-critic", "models-behind-other-names", "models-in-a-magic"}
)
"""Whose cause is not what is said first; but nothing false is said first, either: one writes float64
itself, another computes with linalg, so that both may mean it; models that compute together, or are
used in ways that do not show, are not told apart."""

HOW = {
    "deepcopy-best-if": "%%gpumem",
    "dataset-fits": "%%gpucheck --advise",
    "left-by-an-earlier-trainer": "%%gpucheck --advise",
}
"""How the cell is asked about where that is no prediction: what depends on values is run; what is
worth its price only when memory is short is told when asked for."""

FALSE_THERE = frozenset(
    {"earlier-cells", "second-model", "missing-zero-grad", "retained-graph"}
) | {"separate-models"}


def _parts():
    for path in sorted((Path(__file__).parent / "written").glob("*.py")):
        for part in path.read_text().split("# %% ")[1:]:
            head, text = part.split("\n", 1)
            name, card, words = (each.strip() for each in head.split("|", 2))
            earlier, also_as_one, cell = text.rpartition("# ## cell, or one\n")
            if also_as_one:
                yield name, card, words, "", earlier + cell
                name = f"{name}-of-an-earlier-cell"
            else:
                earlier, _, cell = text.rpartition("# ## cell\n")
            yield name, card, words, earlier, cell


def _in_few_notebooks():
    """Those of one notebook in a row, each with that: one that is run changes it, and is the last."""
    notebooks = {}
    for name, card, words, earlier, cell in _parts():
        before = (card, SETUP, *filter(None, [earlier]))
        notebooks.setdefault(before, []).append((name, words, cell))
    for before, cells in notebooks.items():
        for name, words, cell in sorted(cells, key=lambda one: one[0] in HOW):
            yield pytest.param(before, name, words, cell, id=name)


@pytest.mark.parametrize(
    ("notebook_before", "name", "words", "cell"),
    [*_in_few_notebooks()],
    indirect=["notebook_before"],
)
def test_the_true_cause_is_named_first(notebook_before, name, words, cell, ask):
    report = ask(notebook_before, cell, HOW.get(name, "%%gpucheck"))
    first = report.advice[0] if report.advice else None
    if name in NOT_NAMED:
        assert first is None or first.rule not in FALSE_THERE
        return
    assert first is not None
    assert re.search(words, f"{first.rule} {first.problem} {first.change}")
