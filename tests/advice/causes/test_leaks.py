"""Loops that run out of memory, in the containers and places that people put things; each with what
holds what grew, and whether a graph is held."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import copy, functools, collections, types, numpy as np
from dataclasses import dataclass, field
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
device = torch.device("cuda")
net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)]).to(device)
rnn = nn.LSTM(256, 256, batch_first=True).to(device)
emb = nn.Embedding(1000, 256).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
X = torch.randn(100*512, 256); Y = torch.randn(100*512, 256)
loader = DataLoader(TensorDataset(X, Y), batch_size=512)
criterion = nn.MSELoss()
"""

# cell, holder, with a graph, card
LEAKS = {
    "deque": (
        """\
from collections import deque
recent = deque(maxlen=500)
for xb, yb in loader:
    pred = net(xb.to(device))
    recent.append(pred)
""",
        "recent[*]",
        True,
        "70MiB",
    ),
    "dataclass": (
        """\
@dataclass
class State:
    preds: list = field(default_factory=list)
state = State()
def validate(net, loader):
    for xb, yb in loader:
        state.preds.append(net(xb.to(device)))
validate(net, loader)
""",
        "state.preds[*]",
        True,
        "70MiB",
    ),
    "class-attr": (
        """\
class Meter:
    history = []
    def update(self, v): self.history.append(v)
class Trainer:
    def __init__(self): self.meter = Meter()
    def fit(self):
        for xb, yb in loader:
            xb = xb.to(device); yb = yb.to(device)
            loss = criterion(net(xb), yb)
            optimizer.zero_grad(); loss.backward(retain_graph=True); optimizer.step()
            self.meter.update(loss)
Trainer().fit()
""",
        "Meter.history[*]",
        True,
        "70MiB",
    ),
    "global": (
        """\
all_logits = []
def step(xb):
    global all_logits
    out = net(xb)
    all_logits = all_logits + [out]
    return out
for xb, _ in loader:
    step(xb.to(device))
""",
        "all_logits[*]",
        True,
        "70MiB",
    ),
    "closure": (
        """\
def make_tracker():
    seen = []
    def track(t):
        seen.append(t)
    return track
track = make_tracker()
for xb, yb in loader:
    track(net(xb.cuda()))
""",
        "track: closure.seen[*]",
        True,
        "70MiB",
    ),
    "defaultdict": (
        """\
stats = collections.defaultdict(list)
def run_epoch():
    for xb, yb in loader:
        out = net(xb.to(device))
        stats['pred'].append(out); stats['n'].append(len(xb))
run_epoch()
""",
        "stats['pred'][*]",
        True,
        "70MiB",
    ),
    "numpy-object": (
        """\
found = np.empty(100, dtype=object)
for i, (xb, yb) in enumerate(loader):
    found[i] = net(xb.to(device))
""",
        "found.flat[*]",
        True,
        "70MiB",
    ),
    "hook-graph": (
        """\
features = {}
def hook(name):
    def fn(m, i, o):
        features.setdefault(name, []).append(o)
    return fn
net[1].register_forward_hook(hook('b1'))
for xb, yb in loader:
    loss = criterion(net(xb.to(device)), yb.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
        "features['b1'][*]",
        True,
        "70MiB",
    ),
    "module-attr": (
        """\
class Wrapped(nn.Module):
    def __init__(self):
        super().__init__(); self.net = net; self.losses = []
    def forward(self, x, y):
        out = self.net(x); loss = criterion(out, y)
        self.losses.append(loss); return loss
w = Wrapped()
for xb, yb in loader:
    w(xb.to(device), yb.to(device))
""",
        "w.losses[*]",
        True,
        "70MiB",
    ),
    "callback": (
        """\
class Callback:
    def __init__(self): self.outputs = []
    def on_batch_end(self, **kw): self.outputs.append(kw)
class Trainer:
    def __init__(self, callbacks): self.callbacks = callbacks
    def fit(self):
        for xb, yb in loader:
            xb, yb = xb.to(device), yb.to(device)
            out = net(xb); loss = criterion(out, yb)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            for cb in self.callbacks: cb.on_batch_end(out=out, loss=loss)
trainer = Trainer([Callback()])
trainer.fit()
""",
        "cb.outputs[*] in fit()",
        False,
        "70MiB",
    ),
    "lstm-hidden": (
        """\
hidden = None
rnnopt = torch.optim.Adam(rnn.parameters())
for i in range(200):
    seq = torch.randn(16, 64, 256, device=device)
    out, hidden = rnn(seq, hidden)
    loss = out.pow(2).mean()
    rnnopt.zero_grad(); loss.backward(retain_graph=True); rnnopt.step()
""",
        "hidden",
        True,
        "90MiB",
    ),
    "lstm-hidden-eval": (
        """\
def generate(n):
    state = None
    x = torch.randn(64, 4, 256, device=device)
    for i in range(n):
        x, state = rnn(x, state)
    return x
generate(500)
""",
        "x in generate()",
        True,
        "70MiB",
    ),
    "replay": (
        """\
class ReplayBuffer:
    def __init__(self, n): self.mem = collections.deque(maxlen=n)
    def push(self, *t): self.mem.append(t)
buf = ReplayBuffer(10000)
s = torch.randn(512, 256, device=device)
for t in range(500):
    with torch.no_grad():
        a = net(s)
    s2 = s + 0.01*a
    buf.push(s, a, s2)
    s = s2
""",
        "buf.mem[*]",
        False,
        "70MiB",
    ),
    "replay-graph": (
        """\
memory = []
s = torch.randn(512, 256, device=device)
for t in range(500):
    q = net(s)
    nxt = torch.randn(512, 256, device=device)
    memory.append((s, q, nxt))
    s = nxt
""",
        "memory[*]",
        True,
        "70MiB",
    ),
    "target-net": (
        """\
target = copy.deepcopy(net)
def update(tau):
    for p, tp in zip(net.parameters(), target.parameters()):
        tp.data = tp.data
losses = []
for xb, yb in loader:
    xb = xb.to(device)
    td = net(xb) - target(xb)
    losses.append(td.pow(2).mean())
    optimizer.zero_grad(); td.mean().backward(); optimizer.step()
""",
        "losses[*]",
        True,
        "70MiB",
    ),
    "reinforce": (
        """\
log_probs, rewards = [], []
x = torch.randn(512, 256, device=device)
for t in range(300):
    logits = net(x)
    dist = torch.distributions.Categorical(logits=logits)
    a = dist.sample()
    log_probs.append(dist.log_prob(a)); rewards.append(1.0)
    x = torch.randn(512, 256, device=device)
loss = -torch.stack(log_probs).sum()
loss.backward()
""",
        "log_probs[*]",
        True,
        "70MiB",
    ),
    "memory-bank": (
        """\
bank = torch.zeros(0, 256, device=device)
for xb, yb in loader:
    z = net(xb.to(device))
    bank = torch.cat((bank, z), dim=0)
    sim = z @ bank.T
    loss = sim.mean()
    optimizer.zero_grad(); loss.backward(retain_graph=True); optimizer.step()
""",
        "bank",
        True,
        "100MiB",
    ),
    "create-graph-fn": (
        """\
def gp_step(xb):
    out = net(xb).pow(2).mean()
    out.backward(create_graph=True)
    optimizer.step()
for xb, yb in loader:
    gp_step(xb.to(device))
""",
        "net's gradients",
        True,
        "70MiB",
    ),
    "adv-fgsm": (
        """\
def pgd(net, x, eps=0.1, steps=200):
    adv = x.clone().requires_grad_(True)
    for _ in range(steps):
        loss = net(adv).pow(2).mean()
        grad = torch.autograd.grad(loss, adv, create_graph=True)[0]
        adv = adv + eps * grad
    return adv
pgd(net, X[:512].to(device))
""",
        "adv in pgd()",
        True,
        "70MiB",
    ),
    "diffusion-sample": (
        """\
class Diffusion:
    def __init__(self, net): self.net = net
    def sample(self, n):
        x = torch.randn(n, 256, device=device)
        for t in reversed(range(400)):
            eps = self.net(x)
            x = (x - 0.1*eps) / 0.99
        return x
d = Diffusion(net)
samples = d.sample(512)
""",
        "x in sample()",
        True,
        "70MiB",
    ),
    "best-model-list": (
        """\
checkpoints = []
for epoch in range(100):
    for xb, yb in [next(iter(loader))]:
        loss = criterion(net(xb.to(device)), yb.to(device))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    checkpoints.append({k: v.clone() for k, v in net.state_dict().items()})
""",
        "checkpoints[*]",
        False,
        "70MiB",
    ),
    "kfold": (
        """\
folds = {}
for k in range(80):
    m = nn.Sequential(*[nn.Linear(256,256) for _ in range(6)]).to(device)
    o = torch.optim.Adam(m.parameters())
    m(X[:64].to(device)).mean().backward(); o.step()
    folds[k] = m
""",
        "folds[*]",
        False,
        "70MiB",
    ),
    "kfold-opt": (
        """\
results = []
def train_fold(k):
    m = nn.Sequential(*[nn.Linear(256,256) for _ in range(6)]).to(device)
    o = torch.optim.Adam(m.parameters())
    m(X[:64].to(device)).mean().backward(); o.step()
    return m, o
for k in range(80):
    results.append(train_fold(k))
""",
        "results[*]",
        False,
        "70MiB",
    ),
    "metric-dict": (
        """\
class AverageMeter:
    def __init__(self): self.sum = 0; self.n = 0
    def update(self, v): self.sum += v; self.n += 1
meters = {'loss': AverageMeter()}
for xb, yb in loader:
    loss = criterion(net(xb.to(device)), yb.to(device))
    meters['loss'].update(loss)
""",
        "meters['loss'].sum",
        True,
        "70MiB",
    ),
    "running-loss-fn": (
        """\
def evaluate(model, loader):
    model.eval()
    running = 0.0
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        running += criterion(model(xb), yb)
    return running / len(loader)
val = evaluate(net, loader)
""",
        "running in evaluate()",
        True,
        "70MiB",
    ),
    "accum-loss-backward-at-end": (
        """\
total = 0
for xb, yb in loader:
    total = total + criterion(net(xb.to(device)), yb.to(device))
total.backward()
""",
        "total",
        True,
        "70MiB",
    ),
    "lru-method": (
        """\
class Featurizer:
    @functools.lru_cache(maxsize=None)
    def get(self, i):
        return net(X[i*512:(i+1)*512].to(device))
f = Featurizer()
for i in range(100):
    f.get(i)
""",
        "Featurizer.get: cache[*]",
        True,
        "70MiB",
    ),
    "dict-cache": (
        """\
cache = {}
def features(i):
    if i not in cache:
        with torch.no_grad():
            cache[i] = net(X[i*512:(i+1)*512].to(device))
    return cache[i]
for i in range(100):
    features(i)
""",
        "cache[*]",
        False,
        "30MiB",
    ),
    "dataset-cuda": (
        """\
class Cached(Dataset):
    def __init__(self, X):
        self.items = [X[i:i+512].to(device) for i in range(0, len(X), 512)]
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
ds = Cached(X)
for xb in DataLoader(ds, batch_size=None):
    net(xb)
""",
        "comprehension in line 4",
        False,
        "30MiB",
    ),
    "ones-vstack": (
        """\
all_preds = None
with torch.no_grad():
    for xb, yb in loader:
        p = net(xb.to(device))
        all_preds = p if all_preds is None else torch.vstack((all_preds, p))
""",
        "all_preds",
        False,
        "60MiB",
    ),
    "tuple-grow": (
        """\
outs = ()
for xb, yb in loader:
    outs += (net(xb.to(device)),)
""",
        "outs[*]",
        True,
        "70MiB",
    ),
    "namespace": (
        """\
log = types.SimpleNamespace(train=[], val=[])
for xb, yb in loader:
    out = net(xb.to(device))
    log.val.append(out)
""",
        "log.val[*]",
        True,
        "70MiB",
    ),
    "grads-list": (
        """\
grads = []
for xb, yb in loader:
    loss = criterion(net(xb.to(device)), yb.to(device))
    optimizer.zero_grad(); loss.backward()
    grads.append([p.grad.clone() for p in net.parameters()])
    optimizer.step()
""",
        "grads[*]",
        False,
        "40MiB",
    ),
    "generator": (
        """\
def batches():
    for xb, yb in loader:
        yield net(xb.to(device)), yb
result = list(batches())
""",
        "the list that line 5 builds (result)",
        True,
        "70MiB",
    ),
    "extend": (
        """\
preds = []
for xb, yb in loader:
    preds.extend(net(xb.to(device)))
""",
        "preds[*]",
        True,
        "70MiB",
    ),
    "torch-stack-growing": (
        """\
losses = torch.zeros(0, device=device)
for xb, yb in loader:
    l = criterion(net(xb.to(device)), yb.to(device))
    losses = torch.cat([losses, l.view(1)])
""",
        "losses",
        True,
        "70MiB",
    ),
    "unsqueeze-decode": (
        """\
tokens = torch.zeros(64, 1, dtype=torch.long, device=device)
h = None
for i in range(400):
    e = emb(tokens[:, -1:])
    o, h = rnn(e, h)
    tokens = torch.cat([tokens, o.argmax(-1)], 1)
""",
        "h",
        True,
        "40MiB",
    ),
    "kl-ema-target": (
        """\
center = torch.zeros(1, 256, device=device)
for xb, yb in loader:
    t = net(xb.to(device))
    center = center * 0.9 + t.mean(0, keepdim=True) * 0.1
""",
        "center",
        True,
        "70MiB",
    ),
    "exception-loop": (
        """\
errors = []
for xb, yb in loader:
    out = net(xb.to(device))
    try:
        out.view(3)
    except RuntimeError as e:
        errors.append(e)
""",
        "errors[*]",
        True,
        "70MiB",
    ),
}


@pytest.mark.parametrize(("cell", "holder", "graph", "card"), LEAKS.values(), ids=LEAKS)
def test_what_holds_what_grew_is_named_first(cell, holder, graph, card, predicted):
    report = predicted(cell, card, (SETUP,))
    assert report.oom is not None
    first = report.advice[0]
    assert first.rule == "growth"
    assert holder in first.problem
    assert ("graph" in first.problem or "activations" in first.problem) is graph
    assert first.size > sum(report.oom.held.values()) / 5
    others = {one.rule for one in report.advice[1:]}
    assert not others & {"retained-graph", "activations", "fragmentation"} or not graph


@pytest.mark.parametrize("name", ["reinforce", "accum-loss-backward-at-end"])
def test_a_graph_that_waits_for_its_backward_pass_is_not_to_be_detached(name, predicted):
    cell, _, _, card = LEAKS[name]
    first = predicted(cell, card, (SETUP,)).advice[0]
    assert "detach" not in first.change
    assert "call it in each pass" in first.change
