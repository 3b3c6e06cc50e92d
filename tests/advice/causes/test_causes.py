"""Loops that leave memory behind until there is none: what is named first is what holds it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

SETUP = """\
import copy, functools
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)]).cuda()
cell_of_rnn = nn.GRUCell(256, 256).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(200, 512, 256)

def train_step(x):
    opt.zero_grad()
    out = model(x)
    loss = F.mse_loss(out, x)
    loss.backward()
    opt.step()
    return out, loss

class Logger:
    _records = []

    def log(self, **values):
        self._records.append(values)

class Metric:
    def __init__(self):
        self.preds, self.total = [], 0

    def update(self, output):
        self.preds.append(output)

    def add(self, value):
        self.total = self.total + value

class Bank:
    def __init__(self):
        self.keys = None

    def add(self, key):
        self.keys = key if self.keys is None else torch.cat([self.keys, key])

logger, metric, bank = Logger(), Metric(), Bank()
"""

LEAKS = {
    # outputs with their graphs, in any container
    "list-flat": ("outs = []\nfor x in data:\n    outs.append(model(x.cuda()))", "outs[*]", True),
    "list-function": (
        "def evaluate(model, data):\n    outs = []\n    for x in data:\n"
        "        out = model(x.cuda())\n        outs.append(out)\n    return outs\n"
        "found = evaluate(model, data)",
        "outs[*] in evaluate()",
        True,
    ),
    "list-class": ("for x in data:\n    metric.update(model(x.cuda()))", "metric.preds[*]", True),
    "list-loader": (
        "outs = []\nloader = torch.utils.data.DataLoader(data, batch_size=2)\n"
        "for x in loader:\n    outs.append(model(x.cuda()))",
        "outs[*]",
        True,
    ),
    "list-while": (
        "outs, i = [], 0\nwhile i < len(data):\n    outs.append(model(data[i].cuda()))\n    i += 1",
        "outs[*]",
        True,
    ),
    "dict-flat": (
        "seen = {}\nfor i, x in enumerate(data):\n    seen[f'batch {i}'] = model(x.cuda())",
        "seen[*]",
        True,
    ),
    "dict-of-lists": (
        "from collections import defaultdict\nlogs = defaultdict(list)\nfor x in data:\n"
        "    out, loss = model(x.cuda()), 0\n    logs['out'].append(out)",
        "logs['out'][*]",
        True,
    ),
    "tuples": (
        "pairs = []\nfor i, x in enumerate(data):\n    pairs.append((i, model(x.cuda())))",
        "pairs[*]",
        True,
    ),
    "comprehension": ("outs = [model(x.cuda()) for x in data]", "comprehension in line 2", True),
    # sums that keep the graph of each pass
    "sum-flat": (
        "total = 0\nfor x in data:\n    x = x.cuda()\n    train_step(x)\n"
        "    total += model(x).pow(2).mean()",
        "total",
        True,
    ),
    "sum-class": (
        "for x in data:\n    x = x.cuda()\n    metric.add(model(x).pow(2).mean())",
        "metric.total",
        True,
    ),
    "sum-function": (
        "def run():\n    total = 0\n    for x in data:\n        x = x.cuda()\n"
        "        total = total + F.mse_loss(model(x), x)\n    return total\nfound = run()",
        "total in run()",
        True,
    ),
    # state that goes on from pass to pass
    "hidden-flat": (
        "h = torch.zeros(512, 256, device='cuda')\nfor x in data:\n"
        "    h = cell_of_rnn(x.cuda(), h)\n    h.pow(2).mean().backward(retain_graph=True)\n"
        "    cell_of_rnn.zero_grad()",
        "h",
        True,
    ),
    "hidden-class": (
        "class Trainer:\n    def __init__(self):\n"
        "        self.hidden = torch.zeros(512, 256, device='cuda')\n\n    def step(self, x):\n"
        "        self.hidden = cell_of_rnn(x, self.hidden)\n"
        "        loss = self.hidden.pow(2).mean()\n"
        "        loss.backward(retain_graph=True)\n        cell_of_rnn.zero_grad()\n\n"
        "trainer = Trainer()\nfor x in data:\n    trainer.step(x.cuda())",
        "trainer.hidden",
        True,
    ),
    "sampling-function": (
        "def sample(steps):\n    x = torch.randn(512, 256, device='cuda')\n"
        "    for t in range(steps):\n        noise = model(x)\n"
        "        x = x - 0.01 * noise + 0.01 * torch.randn_like(x)\n    return x\n"
        "image = sample(300)",
        "x in sample()",
        True,
    ),
    "sampling-flat": (
        "x = torch.randn(512, 256, device='cuda')\nfor t in range(300):\n    noise = model(x)\n"
        "    x = x - 0.01 * noise",
        "x",
        True,
    ),
    "adversarial": (
        "x = data[0].cuda()\ndelta = torch.zeros_like(x, requires_grad=True)\n"
        "for i in range(300):\n    loss = model(x + delta).pow(2).mean()\n"
        "    g, = torch.autograd.grad(loss, delta, create_graph=True)\n"
        "    delta = delta + 0.1 * g",
        "delta",
        True,
    ),
    "bank": (
        "for x in data:\n    bank.add(model(x.cuda()))\n    opt.zero_grad()\n"
        "    bank.keys.pow(2).mean().backward(retain_graph=True)\n    opt.step()",
        "bank.keys",
        True,
    ),
    "target-features": (
        "average = torch.zeros(512, 256, device='cuda')\nfor x in data:\n"
        "    out = model(x.cuda())\n    average = 0.9 * average + 0.1 * out\n"
        "    opt.zero_grad()\n    (out - average).pow(2).mean().backward(retain_graph=True)\n"
        "    opt.step()",
        "average",
        True,
    ),
    # collected without a graph
    "logger": (
        "for x in data:\n    out, loss = train_step(x.cuda())\n"
        "    logger.log(loss=loss.item(), out=out.detach())",
        "Logger._records[*]",
        False,
    ),
    "no-grad-list": (
        "outs = []\nwith torch.no_grad():\n    for x in data:\n"
        "        outs.append(model(x.cuda()))",
        "outs[*]",
        False,
    ),
    "cat-function": (
        "def collect():\n    preds = torch.empty(0, 256, device='cuda')\n"
        "    with torch.no_grad():\n"
        "        for x in data:\n            preds = torch.cat([preds, model(x.cuda())])\n"
        "    return preds\npreds = collect()",
        "preds in collect()",
        False,
    ),
    "cat-flat": (
        "preds = torch.empty(0, 256, device='cuda')\nfor x in data:\n    with torch.no_grad():\n"
        "        preds = torch.cat([preds, model(x.cuda())])",
        "preds",
        False,
    ),
    "hook": (
        "acts = []\nhandle = model[0].register_forward_hook(\n"
        "    lambda module, args, out: acts.append(out.detach()))\n"
        "for x in data:\n    train_step(x.cuda())",
        "acts[*]",
        False,
    ),
    "lru-cache": (
        "@functools.lru_cache(maxsize=None)\ndef embed(i):\n    with torch.no_grad():\n"
        "        return model(data[i].cuda())\n\nfor i in range(len(data)):\n    embed(i)",
        "embed: cache[*]",
        False,
    ),
    "batches-kept": (
        "kept = []\nfor x in data:\n    x = x.cuda()\n    train_step(x)\n    kept.append(x)",
        "kept[*]",
        False,
    ),
    # copies of models
    "state-dicts": (
        "history = []\nfor epoch in range(3000):\n    train_step(data[0].cuda())\n"
        "    history.append(copy.deepcopy(model.state_dict()))",
        "history[*]",
        False,
    ),
    "fold-models": (
        "models = []\nfor fold in range(3000):\n    fold_model = copy.deepcopy(model)\n"
        "    models.append(fold_model)",
        "models[*]",
        False,
    ),
    "create-graph": (
        "for x in data:\n    x = x.cuda()\n    loss = F.mse_loss(model(x), x)\n"
        "    loss.backward(create_graph=True)\n    opt.step()",
        "model's gradients",
        True,
    ),
}


def predicted(notebook, cell, card, earlier=()):
    with notebook(card) as one:
        for text in (SETUP, *earlier):
            result, said = one.run(text)
            assert result.success, said
        one.run(f"%%gpucheck -o _predicted\n{cell}")
        return one.shell.user_ns["_predicted"]


@pytest.mark.parametrize(("cell", "holder", "graph"), LEAKS.values(), ids=LEAKS)
def test_what_holds_what_grew_is_named_first(cell, holder, graph, notebook):
    report = predicted(notebook, cell, "70MiB")
    assert report.oom is not None
    first = report.advice[0]
    assert first.rule == "growth"
    assert holder in first.problem
    assert first.size > sum(report.oom.held.values()) / 4
    assert ("graph" in first.problem) is graph
    assert not any(one.rule in ("retained-graph", "activations") for one in report.advice[1:])


@pytest.mark.parametrize("shape", ["list-flat", "hidden-flat", "logger", "cat-flat"])
def test_it_is_named_where_the_code_lies_in_another_cell(shape, notebook):
    cell, holder, _ = LEAKS[shape]
    lines = cell.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("for"))
    run = "def run():\n" + "\n".join(f"    {line}" for line in lines)
    report = predicted(notebook, "run()", "70MiB", earlier=(run,))
    assert report.oom is not None
    told = report.advice[0].problem
    assert (holder if "." in holder else f"{holder} in run()") in told
    assert "In[" in told
    assert first >= 0


def test_bytes_of_a_pass_and_passes_are_those_of_the_loop(notebook):
    cell = "kept = []\nfor x in data[:40]:\n    kept.append(x.cuda())"
    report = predicted(notebook, cell, "24MiB")
    (growth,) = [one for one in report.advice if one.rule == "growth"]
    assert (
        "Memory grew by 512.00 KiB in each of 40 passes: kept[*] holds 20.00 MiB" in growth.problem
    )


def test_a_batch_that_is_too_large_has_not_grown(notebook):
    cell = "x = torch.randn(60_000, 256, device='cuda')\ntrain_step(x)"
    report = predicted(notebook, cell, "150MiB")
    assert report.oom is not None
    assert "growth" not in [one.rule for one in report.advice]


def test_gradients_that_the_first_step_needs_are_not_told_to_go(notebook):
    cell = (
        "big = nn.Linear(2048, 2048).cuda()\nadam = torch.optim.Adam(big.parameters())\n"
        "big(torch.randn(8, 2048, device='cuda')).mean().backward()\nadam.step()"
    )
    report = predicted(notebook, cell, "60MiB")
    assert report.oom is not None
    assert report.oom.line == 5
    assert "GRADIENTS" not in [one.way.name for one in report.oom.remedies]
    assert "zero_grad" not in str(report)


def test_what_goes_on_from_pass_to_pass_is_no_sum_of_results(notebook):
    cell, _, _ = LEAKS["sampling-flat"]
    cell = cell.replace("x = x - 0.01 * noise", "x = x + noise")
    report = predicted(notebook, cell, "70MiB")
    assert report.oom is not None
    assert "kept-graph" not in [one.rule for one in report.advice]


def test_what_is_applied_after_a_prediction_can_be_run(notebook, monkeypatch):
    cell = (
        "total = 0.0\nfor x in data[:20]:\n    x = x.cuda()\n    total += F.mse_loss(model(x), x)\n"
        "print(f'{total / 20:.3f}')"
    )
    with notebook("T4") as one:
        result, said = one.run(SETUP)
        assert result.success, said
        one.run(f"%%gpucheck --advise\n{cell}")
        inputs = []
        monkeypatch.setattr(one.shell, "set_next_input", lambda text, *_: inputs.append(text))
        for number in (1, 2, 3):
            one.run(f"%gpucheck --apply {number}")
    assert inputs
    assert inputs[0].startswith("%%gpumem\n")
    assert "gpucheck" not in inputs[0]
