"""What is not said beside the true cause: that freed graphs are kept, that filled tensors are a
forward pass, or the same bytes twice."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
"""
FREED = """\
net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid()).cuda()
images = {}
for epoch in range(3):
    for _ in range(40):
        x = torch.rand(512, 784).cuda()
        y = net(x)
        F.binary_cross_entropy(y, x).backward()
        images.setdefault(epoch, []).append((x, y))
"""
FILLED = """\
def fit(model):
    weights = [*model.parameters()]
    momenta = [torch.zeros_like(p) for p in weights]; squares = [torch.zeros_like(p) for p in weights]
    def step():
        for p, m, v in zip(weights, momenta, squares):
            m.mul_(0.9).add_(p.grad); v.mul_(0.9).addcmul_(p.grad, p.grad)
            p.data.addcdiv_(m, v.sqrt() + 1e-8, value=-0.01)
    return step
net = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()
step = fit(net)
for _ in range(3):
    net(torch.randn(16, 2048, device="cuda")).mean().backward(); step(); net.zero_grad()
"""
MODELS = """\
def train(seed):
    net = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
    adam = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        loss = net(torch.randn(32, 1024, device="cuda")).pow(2).mean()
        adam.zero_grad(); loss.backward(); adam.step()
    return {"net": net, "loss": loss.item()}
results = {seed: train(seed) for seed in range(8)}
"""
OWN_LAYERS = """\
class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
    def forward(self, x, past):
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        return F.scaled_dot_product_attention(q, k, v), (k, v)
layers = [Attention(512).cuda() for _ in range(6)]
past = [(torch.zeros(16, 0, 512, device="cuda"),) * 2 for _ in layers]
x = torch.randn(16, 1, 512, device="cuda")
with torch.no_grad():
    for _ in range(1200):
        for i, layer in enumerate(layers):
            x, past[i] = layer(x, past[i])
"""
JOINED = """\
net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)).cuda()
sgd = torch.optim.SGD(net.parameters(), 0.01)
logits = torch.Tensor().cuda()
for _ in range(100):
    out = net(torch.randn(512, 256, device="cuda"))
    loss = out.pow(2).mean()
    sgd.zero_grad(); loss.backward(); sgd.step()
    logits = torch.cat((logits, out), dim=0)
"""
SEARCH = """\
def train(width):
    net = nn.Sequential(nn.Linear(512, width), nn.ReLU(), nn.Linear(width, 512)).cuda()
    adam = torch.optim.Adam(net.parameters())
    for _ in range(3):
        loss = net(torch.randn(64, 512, device="cuda")).pow(2).mean()
        adam.zero_grad(); loss.backward(); adam.step()
    return {"width": width, "net": net}
found = []
for width in (1024, 2048, 4096):
    for _ in range(3):
        found.append(train(width))
"""
CHECKPOINTS = """\
import copy
net = nn.Sequential(*[nn.Linear(1280, 1280) for _ in range(4)]).cuda()
sgd = torch.optim.SGD(net.parameters(), 0.01)
states = {}
for epoch in range(8):
    loss = net(torch.randn(32, 1280, device="cuda")).pow(2).mean()
    sgd.zero_grad(); loss.backward(); sgd.step()
    states[epoch] = copy.deepcopy(net.state_dict())
"""
MOVED = """\
class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
        self.outs = []
    def validation_step(self, batch):
        out = self.net(batch[0])
        self.outs.append({"out": out, "loss": F.mse_loss(out, batch[1])})
def validate(model):
    for batch in [(torch.randn(512, 256), torch.randn(512, 256))] * 100:
        model.validation_step([each.cuda() for each in batch])
lit = Lit().cuda()
validate(lit)
"""


@pytest.mark.parametrize(
    ("cell", "card", "first", "others"),
    [
        (JOINED, "100MiB", "growth", "activations"),
        (SEARCH, "200MiB", "growth", "separate-models"),
        (CHECKPOINTS, "190MiB", "growth", "copied-model"),
        (MOVED, "150MiB", "growth", "kept-graph"),
        (FREED, "100MiB", "growth", "kept-graph"),
        (FILLED, "260MiB", "optimizer-state", "missing-no-grad"),
        (MODELS, "160MiB", "growth", "growth"),
        (OWN_LAYERS, "300MiB", "growth", "growth"),
    ],
)
def test_nothing_false_stands_beside_the_cause(cell, card, first, others, predicted):
    rules = [advice.rule for advice in predicted(cell, card, (SETUP,)).advice]
    assert rules[0] == first
    assert others not in rules[1:]


NAMED_ALIKE = """\
blocks = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]).cuda()
def fit(model{given}):{built}
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(12000, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
fit(blocks{passed})
"""
OF_MODEL = "torch.optim.SGD({}.parameters(), lr=.1)"


STATES = """\
class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))
    def forward(self, x):
        states = [x]
        for layer in self.layers:
            states.append(states[-1] + F.gelu(layer(states[-1])))
        return {"states": states}
net = Layers().cuda()
found = []
for _ in range(100):
    out = net(torch.randn(2048, 512, device="cuda"))
    found.append(out["states"][-1].mean(1))
"""


def test_what_the_pass_that_ran_had_made_did_not_grow_from_pass_to_pass(predicted):
    report = predicted(STATES, "500MiB", (SETUP,))
    assert report.oom
    grown = [advice for advice in report.advice if advice.rule == "growth"]
    assert [advice.name for advice in grown] == ["found[*]"]


@pytest.mark.parametrize(
    "words",
    [
        {"given": "", "built": f"\n    optimizer = {OF_MODEL.format('model')}", "passed": ""},
        {"given": ", optimizer", "built": "", "passed": f", {OF_MODEL.format('blocks')}"},
    ],
    ids=["made in the function", "given to it"],
)
def test_another_optimizer_of_that_name_trains_nothing_less(words, predicted):
    earlier = f"small = nn.Linear(64, 64).cuda()\noptimizer = {OF_MODEL.format('small')}"
    report = predicted(NAMED_ALIKE.format(**words), "4GiB", (SETUP, earlier))
    assert report.error is None
    assert "frozen-layers-record" not in {advice.rule for advice in report.advice}


PARAMETERS_OF_ONE = """\
weights = [nn.Parameter(torch.randn(1024, 1024, device="cuda")) for _ in range(4)]
kept = []
for _ in range(30):
    x = torch.randn(64, 1024, device="cuda")
    for weight in weights:
        x = torch.tanh(x @ weight)
    kept.append(x)
"""
SOFT_LABELS = """\
net = nn.Sequential(nn.Embedding(8000, 64), nn.Linear(64, 8000)).cuda()
tokens = torch.randint(0, 8000, (16, 128), device="cuda")
def loss_of(logits, of): return -(F.one_hot(of, 8000).float() * F.log_softmax(logits, -1)).sum(-1).mean()
loss_of(net(tokens), tokens).backward()
"""


@pytest.mark.parametrize(
    ("cell", "card", "false"),
    [
        (PARAMETERS_OF_ONE, "44MiB", "weights holds|weights\\["),
        (SOFT_LABELS, "220MiB", "addmm.*int64"),
    ],
)
def test_nothing_false_is_said_beside_it(cell, card, false, predicted):
    report = predicted(cell, card, (SETUP,))
    assert report.oom
    assert not any(re.search(false, f"{one.problem} {one.change}") for one in report.advice)
