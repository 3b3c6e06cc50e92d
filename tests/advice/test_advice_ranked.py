"""The order in which advice is told, and that none of it is told twice."""

from __future__ import annotations

import re

import pytest

from gpumem_magic.advice import ranked
from gpumem_magic.values.advice import Advice, Cost, Known

GIB = 1 << 30


def one(rule, name, saving=GIB, **more):
    return Advice(rule, "", "", name=name, saving=saving, known=Known.MEASURED, **more)


def test_cause_before_cure_free_before_time_before_accuracy_then_what_fits_then_what_saves():
    expected = [
        one("growth", "grows", saving=0),
        one("missing-no-grad", "cause"),
        one("activations", "free and fits", fits=True),
        one("activations", "free", 3 * GIB, fits=False),
        one("activations", "time", 4 * GIB, cost=Cost.TIME, price="a pass", fits=True),
        one("activations", "less for time", 2 * GIB, cost=Cost.TIME, price="a pass", fits=True),
        one("activations", "slow", 6 * GIB, cost=Cost.SLOW, price="copies", fits=True),
        one("activations", "accuracy", 7 * GIB, cost=Cost.ACCURACY, price="digits", fits=True),
        one("kept-graph", "little", GIB // 4),
    ]
    told = ranked(reversed(expected), 8 * GIB)
    assert [advice.name for advice in told] == [advice.name for advice in expected]


SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]).cuda()
data = torch.randn(30, 1024, 256)
"""
CELLS = {
    "two leaks": (
        "first, second = [], []\nfor x in data:\n    first.append(model(x.cuda()))\n"
        "    second.append(x.cuda())\n"
    ),
    "training": (
        "opt = torch.optim.Adam(model.parameters())\nfor x in data[:2]:\n    x = x.cuda()\n"
        "    loss = F.mse_loss(model(x), x)\n    opt.zero_grad()\n    loss.backward()\n"
        "    opt.step()\n"
    ),
    "gaps": (
        "whole = torch.empty(10_000_000, device='cuda')\ndel whole\n"
        "gaps, walls = zip(*[(torch.empty(1_000_000, device='cuda'), torch.empty(300_000, "
        "device='cuda')) for _ in range(7)])\ndel gaps\n"
        "last = torch.empty(6_000_000, device='cuda')\n"
    ),
    "all on the device": "kept = [x.cuda() for x in data]\nwith torch.no_grad():\n"
    "    outs = [model(x) for x in kept]\n",
}


@pytest.mark.parametrize("magic", ["%%gpumem", "%%gpucheck", "%%gpucheck --advise"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("card", ["40MiB", "T4"])
def test_nothing_is_said_twice(notebook, cell, magic, card):
    with notebook(card) as one_:
        one_.run(SETUP)
        _, said = one_.run(f"{magic}\n{cell}")
    text = " ".join(said.split())
    sentences = [s for s in re.split(r"(?<=[.:]) (?=[A-Z])", text) if len(s) > 60]
    assert [s for s in sentences if sentences.count(s) > 1] == []
    assert "PYTORCH_ALLOC_CONF" not in text
    if card == "T4":
        assert "then fits" not in text
