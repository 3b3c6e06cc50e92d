"""What is said of a cause, word for word where it matters: who holds it, since when, how many
bytes, and no remedy that would break the loop; of predictions, and of advice that is asked for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import copy
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
data = torch.randn(60, 512, 256)
"""
SAMPLER = """\
def sample(n):
    image = torch.randn(512, 256, device="cuda")
    for _ in range(n):
        image = image - 0.1 * net(image)
    return image
"""
PAIRS = """\
points = torch.randn(6000, 64, device="cuda")
centers = points[:64]
for _ in range(4):
    nearest = ((points[:, None] - centers[None]) ** 2).sum(-1).argmin(1)
    centers = points[nearest[:64]]
"""
FOLD = """\
def fold(width):
    one = nn.Linear(512, width).cuda()
    adam = torch.optim.Adam(one.parameters())
    one(torch.randn(8, 512, device="cuda")).mean().backward()
    adam.step()
    return {"net": one, "adam": adam}
"""
VOTES = """\
members = [nn.Linear(256, 256).cuda() for _ in range(4)]
votes = {}

def vote(tag, x):
    votes[tag] = [member(x) for member in members]
"""
CACHE = """\
class Cache:
    def __init__(self):
        self.keys = torch.zeros(64, 0, 256, device="cuda")

    def add(self, key):
        self.keys = torch.cat([self.keys, key], 1)
        return self.keys
"""
GATHER = """\
def mib(n):
    return torch.zeros(int(n * 2**20), dtype=torch.uint8, device="cuda")

def gather(n):
    kept = []
    for i in range(n):
        work = mib(6 + i % 4)
        kept.append(mib(1.5))
        del work
"""
BROKEN = """\
def broken():
    inner = torch.zeros(40, 2**18, device="cuda")
    raise ValueError

broken()
"""
SHELF = """\
class Shelf:
    def __init__(self, n):
        self.rows = torch.randn(n, 256).cuda()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]
"""
LEARNER = """\
class Learner:
    def __init__(self, model):
        self.model = model

    def validate(self, batches):
        self.model.eval()
        return sum(self.model(x.cuda()).mean().item() for x in batches)

learner = Learner(nn.Sequential(*[nn.Linear(256, 256) for _ in range(12)]).cuda())
"""
KERNEL = """\
import numpy as np

def kernel(a, b):
    return torch.exp(-torch.cdist(a, b) ** 2)
"""
# earlier cells, cell, card, what the first advice says, what no advice says
PREDICTED = {
    "a comprehension whose variable has the name of a loop's": (
        (),
        "def attack(x):\n    adv = x.clone().requires_grad_()\n    for _ in range(4):\n"
        "        g, = torch.autograd.grad(net(adv).sum(), adv, create_graph=True)\n"
        "        adv = adv + g.sign() + 0 * g\n    return adv\n\n"
        "kept = [attack(torch.rand(512, 256, device='cuda')) for _ in range(40)]",
        "60MiB",
        ("growth", "(kept)"),
        ("stale-variable",),
    ),
    "a hidden state inside of a model": (
        (
            "class Cell(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.c, self.h = nn.GRUCell(256, 256), None\n"
            "    def forward(self, x):\n        self.h = self.c(x, self.h)\n"
            "        return self.h\n"
            "    def begin(self):\n        self.h = self.h.detach()\n"
            "cell = Cell().cuda()",
        ),
        "loss = 0\nfor t in range(60):\n    x = data[t].cuda()\n"
        "    loss = loss + F.mse_loss(cell(x), x)\n    if t % 20 == 19:\n"
        "        loss.backward()\n        cell.begin()\n        loss = 0",
        "4GiB",
        (),
        ("gradient-accumulation-wrong",),
    ),
    "one backward for many batches, in a branch of their loop": (
        (),
        "total = 0\nfor t in range(60):\n    x = data[t].cuda()\n"
        "    total = total + F.mse_loss(net(x), x) / 20\n    if t % 20 == 19:\n"
        "        total.backward()\n        total = 0",
        "120MiB",
        ("gradient-accumulation-wrong", "graphs of 20 batches in total"),
        (),
    ),
    "one backward for a list of losses, in a branch of a loop that leaves some over": (
        (),
        "losses = []\nt = 0\nwhile t < 50:\n    x = data[t].cuda()\n"
        "    losses.append(F.mse_loss(net(x), x))\n    t += 1\n    if len(losses) == 20:\n"
        "        torch.stack(losses).mean().backward()\n        losses = []",
        "120MiB",
        ("gradient-accumulation-wrong", "graphs of 20 batches in losses", "by their number"),
        (),
    ),
    "states that go on from pass to pass, of which each is kept": (
        (),
        "def dream(h):\n    states = []\n    for _ in range(40):\n        h = net(h)\n"
        "        states.append(h)\n    return states\n\n"
        "def update(x):\n    s = dream(x)\n    torch.stack(s).mean().backward()\n\n"
        "for x in data:\n    update(x.cuda())",
        "95MiB",
        ("growth", "with their autograd graphs"),
        ("the same gradients",),
    ),
    "one large image": (
        (),
        "seg = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 4, 1)).cuda()\n"
        "with torch.no_grad():\n    mask = seg(torch.rand(1, 3, 2048, 2048, device='cuda'))",
        "600MiB",
        ("large-pass", "computes the whole", "tiles"),
        (),
    ),
    "a model that a closure trains": (
        (),
        "def stepper(model):\n    adam = torch.optim.Adam(model.parameters())\n\n"
        "    def step(x):\n        adam.zero_grad()\n        model(x).mean().backward()\n"
        "        adam.step()\n\n    return step\n\n"
        "wide = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()\n"
        "step = stepper(wide)\nfor x in data[:3]:\n    step(x[:4].cuda())",
        "230MiB",
        ("optimizer-state",),
        ("nothing below",),
    ),
    "a hidden layer as wide as a vocabulary": (
        (),
        "wide = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 64)).cuda()\n"
        "x = data[:8].reshape(-1, 256).cuda()\nloss = wide(x).mean()\nloss.backward()",
        "180MiB",
        ("activations",),
        ("last layer",),
    ),
    "a training step written on one line, which fails": (
        ("old = nn.Linear(2048, 2048).cuda()",),
        "deep = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]).cuda()\n"
        "sgd = torch.optim.SGD(deep.parameters())\nfor _ in range(3):\n"
        "    x = torch.randn(2048, 512, device='cuda')\n"
        "    l = deep(x).mean(); sgd.zero_grad(); l.backward(); sgd.step()",
        "90MiB",
        (),
        ("no backward pass used them", "fragmentation"),
    ),
    "labels that are kept beside outputs": (
        (
            "class Seen:\n    def __init__(self):\n        self.all = []\n\n"
            "    def update(self, p, y):\n        self.all.append((p, y))\n\nseen = Seen()",
        ),
        "for x in data:\n    seen.update(net(x.cuda()), x.argmax(1).to('cuda'))",
        "60MiB",
        ("growth", "seen.all[*] holds"),
        ("x.argmax(1).to('cuda') holds",),
    ),
    "gradients that a hook keeps": (
        (),
        "kept = []\nfor p in net.parameters():\n    p.register_hook(lambda g: kept.append(g.clone()))\n"
        "sgd = torch.optim.SGD(net.parameters())\nfor x in data:\n"
        "    loss = net(x.cuda()).mean()\n    sgd.zero_grad()\n    loss.backward()\n    sgd.step()",
        "60MiB",
        ("growth", "kept[*] holds"),
        ("wait for the step",),
    ),
    "the first pass of a batch that is too large": (
        (),
        "x = data.reshape(-1, 256).cuda()\nloss = net(x).mean()\nloss.backward()",
        "110MiB",
        (),
        ("fragmentation",),
    ),
    "a matrix of all pairs that is decomposed": (
        (),
        "def posterior(x, y):\n    k = torch.exp(-((x[:, None] - x[None]) ** 2))\n"
        "    k.diagonal().add_(0.1)\n    return torch.cholesky_solve(y, torch.linalg.cholesky(k))\n"
        "posterior(torch.rand(3000, device='cuda'), torch.rand(3000, 1, device='cuda'))",
        "T4",
        (),
        ("All pairs",),
    ),
    "a sum in a dictionary": (
        (),
        "stats = {'loss': 0}\nfor x in data:\n    stats['loss'] += net(x.cuda()).pow(2).mean()",
        "64MiB",
        ("growth", "stats['loss'] holds", "Keep net(x.cuda()).pow(2).mean().detach() instead"),
        ("each entry",),
    ),
    "entries whose graph is gone": (
        (),
        "seen = []\nfor x in data:\n    x = x.cuda()\n    out = net(x)\n"
        "    F.mse_loss(out, x).backward()\n    seen.append(out)",
        "40MiB",
        ("growth", "seen[*] holds", "Move what is kept to the host"),
        ("with their autograd graphs", ".detach()"),
    ),
    "models with their optimizers": (
        (FOLD,),
        "found = []\nfor width in (1024, 2048) * 9:\n    found.append(fold(width))",
        "100MiB",
        ("growth", "Memory grew by 11.22 MiB in each of 5 passes: found[*] holds 56.11 MiB"),
        ("since",),
    ),
    "lists in a dictionary": (
        (VOTES,),
        "for day in range(200):\n    vote(f'day {day}', torch.randn(512, 256, device='cuda'))",
        "60MiB",
        ("growth", "votes[*] holds", "in each of 1"),
        ("in each of 4 passes", "in each of 5 passes"),
    ),
    "caches of several layers": (
        (CACHE,),
        "caches = [Cache() for _ in range(4)]\nfor _ in range(800):\n    for cache in caches:\n"
        "        cache.add(torch.ones(64, 1, 256, device='cuda'))",
        "100MiB",
        ("growth", "caches[*] holds", "Memory grew by 25", "write into it"),
        (
            "since",
            "joined",
        ),
    ),
    "a traceback is no variable": (
        (BROKEN,),
        "x = torch.zeros(30, 2**18, device='cuda')",
        "60MiB",
        ("stale-exception", "inner of broken"),
        ("earlier-cells",),
    ),
    "what several lines made, and what an object keeps in a list": (
        (
            "class Tracker:\n    def __init__(self):\n        self.losses = []\n"
            "    def update(self, loss):\n        self.losses.append(loss)\ntracker = Tracker()",
        ),
        "for x in data:\n    x = x.cuda()\n    out = net(x)\n    loss = F.mse_loss(out, x)\n"
        "    tracker.update(loss)",
        "60MiB",
        (
            "growth",
            "tracker.losses[*] holds",
            "made in lines 3, 4 and 5, with",
            "Keep loss.detach()",
        ),
        ("kept-graph",),
    ),
    "a state of the size of a weight is none": (
        (
            "class Leaky(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.fc = nn.Linear(256, 256)\n"
            "        self.register_buffer('level', torch.zeros(512, 256))\n"
            "    def forward(self, x):\n        self.level = 0.9 * self.level + self.fc(x)\n"
            "        return torch.sigmoid(self.level)\nleaky = Leaky().cuda()",
        ),
        "loss = 0\nfor x in data:\n    loss = loss + leaky(x.cuda()).mean()\nloss.backward()",
        "60MiB",
        ("growth", "backward() (line 5) comes after"),
        ("computed-weights",),
    ),
    "what torch.func computes backward waits for nothing": (
        ("from torch.func import jacrev, vmap",),
        "jacobians = vmap(jacrev(net))(data[0, :256].cuda())",
        "200MiB",
        (),
        ("activations",),
    ),
    "the variables of a library's function are told as its call": (
        (
            "import threading\nparts = [torch.zeros(2**20, device='cuda') for _ in range(5)]\n"
            "copy.deepcopy([parts, threading.Lock()])",
            "del parts",
        ),
        "x = torch.zeros(30, 2**18, device='cuda')",
        "60MiB",
        ("stale-exception", "(those of deepcopy(), 40.00 MiB)"),
        ("memo",),
    ),
    "what is made on the device is not moved": (
        (),
        "index = torch.randint(0, 40_000, (1000,), device='cuda')\n"
        "F.one_hot(index, 40_000).to(torch.float32).sum(0)",
        "400MiB",
        ("enlarged-result", "one_hot makes [1000, 40000]"),
        ("dataset-on-device",),
    ),
    "one-hot rows that became floats": (
        (),
        "index = torch.randint(0, 40_000, (1000,), device='cuda')\n"
        "rows = F.one_hot(index, 40_000).float()\n"
        "scores = torch.randn(1000, 40_000, device='cuda')\n"
        "(scores.softmax(1) * rows).sum()",
        "560MiB",
        ("enlarged-result", "line 3: one_hot makes [1000, 40000], gone by then"),
        (),
    ),
    "gaps": (
        (),
        "keep, drop = [], []\nfor _ in range(12):\n"
        "    drop.append(torch.empty(9 << 20, dtype=torch.uint8, device='cuda'))\n"
        "    keep.append(torch.empty(2 << 20, dtype=torch.uint8, device='cuda'))\n"
        "drop.clear()\nlarge = torch.empty(60 << 20, dtype=torch.uint8, device='cuda')",
        "160MiB",
        ("fragmentation", "in pieces of at most 18.00 MiB"),
        (),
    ),
    "a leak elsewhere that ends among gaps": (
        (GATHER,),
        "gather(1000)",
        "100MiB",
        ("growth", "kept[*] in gather()"),
        ("fragmentation",),
    ),
    "a data set of tensors on the device": (
        ("x, y = torch.randn(40_000, 256), torch.randn(40_000, 256)",),
        "pairs = TensorDataset(x.cuda(), y.cuda())\nfor a, b in DataLoader(pairs, batch_size=256):\n"
        "    F.mse_loss(net(a), b).backward()",
        "100MiB",
        ("dataset-on-device", "The data set made on line 2 holds 80.00 MiB"),
        (),
    ),
    "an evaluation in a class of another cell": (
        (LEARNER,),
        "learner.validate(torch.randn(2, 8192, 256))",
        "90MiB",
        ("missing-no-grad", "The forward pass on line 2 saved"),
        (),
    ),
    "a data set of another cell that a loader reads": (
        (SHELF + "shelf = Shelf(60_000)\nloader = DataLoader(shelf, batch_size=4096)",),
        "for x in loader:\n    net(x).mean().backward()",
        "90MiB",
        ("dataset-on-device", "shelf holds 58.59 MiB on the device; a loader reads it"),
        ("does not use: shelf",),
    ),
    "features that no optimizer is for": (
        ("adam = torch.optim.Adam(nn.Linear(8, 8).cuda().parameters())",),
        "vectors = []\nfor x in data[:3]:\n    vectors.append(net(x.cuda().repeat(8, 1)))\n"
        "torch.cat(vectors).pow(2).sum().backward",
        "60MiB",
        ("no_grad",),
        (),
    ),
}
ASKED = {
    "a list that is joined after the loop": (
        (),
        "outs = []\nfor x in data:\n    outs.append(net(x.cuda()))\nouts = torch.cat(outs)",
        "64MiB",
        ("growth", "outs[*] holds", "Keep net(x.cuda()).detach() instead", ".cpu()"),
        ("outs.detach()",),
    ),
    "what came of a loop elsewhere": (
        (SAMPLER,),
        "picture = sample(100)",
        "64MiB",
        ("growth", "picture holds", "goes on into the next pass"),
        ("picture.detach()",),
    ),
    "a leak without a graph": (
        (),
        "kept = []\nfor x in data:\n    kept.append(x.cuda())",
        "24MiB",
        ("growth", "Memory grew by 512.00 KiB in each of 60 passes: kept[*] holds 30.00 MiB"),
        (),
    ),
    "a data set whose class is in another cell": (
        (SHELF,),
        "shelf = Shelf(60_000)\nfor x in DataLoader(shelf, batch_size=4096):\n    net(x)",
        "90MiB",
        ("dataset-on-device", "shelf holds 58.59 MiB on the device; a loader reads it"),
        (),
    ),
    "results of arrays, in a function": (
        (KERNEL,),
        "x = torch.from_numpy(np.random.rand(2500, 8)).cuda()\nk = kernel(x, x)\nk = k / k.sum(1)",
        "T4",
        ("float64-by-accident", "float64"),
        (),
    ),
    "a model of another cell in double precision": (
        (
            "wide = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1)).double().cuda()",
        ),
        "x = torch.rand(2048, 64).double().cuda()\nwide(x).mean().backward()",
        "T4",
        ("float64-by-accident", "at the peak are float64 (wide"),
        (),
    ),
    "an object that may hold what has another name": (
        (SHELF + "shelf = Shelf(60_000)\nloader = DataLoader(shelf, batch_size=4096)",),
        "for x in loader:\n    net(x).mean().backward()",
        "90MiB",
        ("dataset-on-device", "shelf holds 58.59 MiB on the device"),
        ("earlier-cells",),
    ),
    "what a line frees of another name's": (
        ("frozen = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)]).cuda()",),
        "for x in data[:3]:\n    s, t = net(x.cuda()), frozen(x.cuda())\n"
        "    loss = F.mse_loss(s, t.detach())\n    loss.backward()",
        "T4",
        (),
        ("stale-variable s,",),
    ),
    "what earlier cells left": (
        ("old = nn.Linear(2048, 2048).cuda()",),
        "new = nn.Linear(2048, 2048).cuda()",
        "24MiB",
        ("earlier-cells", "17.01 MiB that this cell does not use: old, net"),
        (),
    ),
    "a copy of a model": (
        ("large = nn.Linear(2048, 2048).cuda()",),
        "best = copy.deepcopy(large)\nlarge(torch.ones(8, 2048, device='cuda')).mean().backward()",
        "40MiB",
        ("copied-model", "line 1 copies 16.01 MiB"),
        (),
    ),
    "copies of a model, one after the other": (
        ("large = nn.Linear(2048, 2048).cuda()",),
        "with torch.inference_mode():\n    for _ in range(4):\n"
        "        large(torch.ones(8, 2048, device='cuda'))\n        best = copy.deepcopy(large)",
        "50MiB",
        ("copied-model", "line 4 copies 32.02 MiB"),
        (),
    ),
    "copies of all weights in each pass, in one list": (
        ("net = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 1024)).cuda()",),
        "kept = []\nfor epoch in range(30):\n    kept += [p.detach().clone() for p in net.parameters()]",
        "100MiB",
        ("growth", "Memory grew by 6.01 MiB in each of", "passes: kept[*] holds", "line 3"),
        (),
    ),
    "differences of all pairs, in a loop": (
        (),
        PAIRS,
        "60MiB",
        ("enlarged-result", "what was computed of it, 94.00 MiB"),
        (),
    ),
    "results of many passes that are kept": (
        ("head = nn.Linear(16, 20_000).cuda()\n\ndef scores(x):\n    return head(x)",),
        "found = []\nwith torch.no_grad():\n    for _ in range(10):\n"
        "        found.append(scores(torch.ones(512, 16, device='cuda')))",
        "T4",
        (),
        ("last layer", "enlarged-result"),
    ),
}


def _texts(advice):
    return [f"{one.rule} {one.problem} {one.change}" for one in advice]


def _agrees(advice, said, not_said):
    texts = _texts(advice)
    assert [words for words in said if not texts or words not in texts[0]] == []
    assert [words for words in not_said if words in " ".join(texts)] == []


@pytest.mark.parametrize(
    ("earlier", "cell", "card", "said", "not_said"), PREDICTED.values(), ids=PREDICTED
)
def test_what_a_prediction_says_first_is_true(notebook, earlier, cell, card, said, not_said):
    with notebook(card) as one:
        for text in (SETUP, *earlier):
            one.run(text)
        one.run(f"%%gpucheck -o _predicted\n{cell}")
        _agrees(one.shell.user_ns["_predicted"].advice, said, not_said)


@pytest.mark.parametrize(("earlier", "cell", "card", "said", "not_said"), ASKED.values(), ids=ASKED)
def test_what_is_said_first_when_advice_is_asked_for_is_true(
    notebook, earlier, cell, card, said, not_said
):
    with notebook(card) as one:
        for text in (SETUP, *earlier):
            one.run(text)
        _agrees(one.assess(cell).advice, said, not_said)


DEEP = """\
deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])
deep = deep.cuda()
held = torch.empty(1400 << 20, dtype=torch.uint8, device="cuda")
"""


def test_the_others_of_a_full_device_do_not_hide_a_small_mistake(notebook):
    with notebook("1600MiB") as one:
        one.run(SETUP + DEEP)
        found = one.assess("x = data[:2].cuda()\nscore = deep(x).pow(2).mean().item()")
        rules = [advice.rule for advice in found.advice]
        assert rules == ["earlier-cells", "missing-no-grad"]
        assert found.report.device.total == 1600 << 20  # of a run without limit, too
