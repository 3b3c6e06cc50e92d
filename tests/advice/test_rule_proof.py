"""What a dry run says that a change saves is what the changed cell saves when it is run, in code of
any shape."""

from __future__ import annotations

import textwrap

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.advice import RULES  # noqa: E402 - needs torch for what it is tested with
from gpumem_magic.values.advice import Kind, Known, Saves  # noqa: E402

SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]).cuda()
data = torch.randn(4, 2048, 256)
"""
LOADER = "data = torch.utils.data.DataLoader(data, batch_size=None)\n"

BODIES = {
    "no backward": """\
outs = []
for x in data:
    outs.append(model(x.cuda()))
found = [float(out.mean()) for out in outs]
""",
    "a sum of losses": """\
total = 0
for x in data:
    x = x.cuda()
    total += F.mse_loss(model(x), x)
found = [float(total)]
""",
    "training": """\
opt = torch.optim.Adam(model.parameters())
found = []
for x in data:
    x = x.cuda()
    loss = F.mse_loss(model(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    found.append(loss.item())
""",
}


def shaped(body, shape):
    """Cells that come before, and the cell."""
    inside = textwrap.indent(body, "    ") + "    return found\n"
    function = f"def run():\n{inside}"
    method = f"class Runner:\n{textwrap.indent(inside.replace('def run()', ''), '    ')}"
    method = method.replace("class Runner:\n", "class Runner:\n    def run(self):\n")
    return {
        "flat": ("", body),
        "loader": (LOADER, body),
        "function": ("", f"{function}\nfound = run()\n"),
        "class": ("", f"{method}\nfound = Runner().run()\n"),
        "two cells": (function, "found = run()\n"),
    }[shape]


def size(report, saves):
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def run_live(notebook, earlier, cell):
    with notebook("T4") as one:
        for text in filter(None, (SETUP, earlier)):
            result, said = one.run(text)
            assert result.success, said
        return one.measure(cell), one.shell.user_ns["found"]


@pytest.mark.parametrize("shape", ["flat", "loader", "function", "class", "two cells"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_changed_cell_that_is_run_saves_what_its_dry_run_said(body, shape, notebook):
    earlier, cell = shaped(body, shape)
    with notebook("T4") as one:
        for text in filter(None, (SETUP, earlier)):
            one.run(text)
        found = one.assess(cell)
    before, results = run_live(notebook, earlier, cell)
    assert found.report.peak.allocated == before.peak.allocated
    changes = [a for a in (*found.advice, *found.useless) if a.known is Known.MEASURED]
    assert changes or shape == "two cells"
    assert not found.failed
    kinds = {rule.name: rule.kind for rule in RULES}
    for change in changes:
        after, now = run_live(notebook, earlier, change.source)
        saved = size(before, change.saves) - size(after, change.saves)
        assert abs(saved - change.saving) <= 0.02 * abs(change.saving), change
        if kinds[change.rule] is Kind.MISTAKE:
            assert now == pytest.approx(results, rel=1e-4)
