"""Cells that are too large at one place; each with the rule that has to be heard first, what it
says of the cause, and what it would change."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import copy, math, numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
device = torch.device("cuda")
"""

# earlier cells, cell, card, rule, cause, change
LARGE = {
    "windows-unfold": (
        (),
        """\
images = torch.randn(8, 8, 128, 128, device=device)
weight = torch.randn(16, 392, device=device, requires_grad=True)
columns = F.unfold(images, 7, padding=3)
out = weight @ columns
out.square().mean().backward()
""",
        "250MiB",
        "enlarged-result",
        "im2col makes [8, 392, 16384]",
        "F.conv2d",
    ),
    "pairs-outer-sum": (
        (),
        """\
left = torch.randn(512, 64, device=device, requires_grad=True)
z = left[:, None] + left[None]
for _ in range(3):
    z = z + torch.relu(z)
z.sum().backward()
""",
        "400MiB",
        "enlarged-result",
        "what was computed of it holds",
        "All pairs at once",
    ),
    "pairwise-flat": (
        (),
        """\
a = torch.randn(2000, 256, device=device)
b = torch.randn(2000, 256, device=device)
dist = (a[:, None, :] - b[None, :, :]).pow(2).sum(-1).sqrt()
nn_idx = dist.argmin(1)
""",
        "2GiB",
        "enlarged-result",
        "line 4 asks for 3.81 GiB",
        "torch.cdist",
    ),
    "pairwise-fn": (
        (),
        """\
def pairwise(x, y):
    diff = x.unsqueeze(1) - y.unsqueeze(0)
    return torch.sum(diff * diff, dim=-1)
pts = torch.randn(3000, 128, device=device)
d = pairwise(pts, pts)
""",
        "T4",
        "enlarged-result",
        "[3000, 3000, 128]",
        "torch.cdist",
    ),
    "pairwise-class": (
        (),
        """\
class KNN:
    def __init__(self, X): self.X = X
    def predict(self, q):
        d = torch.norm(q[:, None] - self.X[None], dim=2)
        return d.topk(5, largest=False).indices
knn = KNN(torch.randn(5000, 256, device=device))
knn.predict(torch.randn(2000, 256, device=device))
""",
        "8GiB",
        "enlarged-result",
        "line 5 asks for 9.54 GiB",
        "torch.cdist",
    ),
    "rbf": (
        (),
        """\
X = torch.randn(4000, 64, device=device)
def rbf(X, g=0.1):
    return torch.exp(-g * ((X.unsqueeze(0) - X.unsqueeze(1)) ** 2).sum(2))
K = rbf(X)
""",
        "8GiB",
        "enlarged-result",
        "[4000, 4000, 64]",
        "torch.cdist",
    ),
    "allpairs-sim": (
        (),
        """\
emb = torch.randn(100000, 128, device=device)
emb = F.normalize(emb, dim=1)
sim = emb @ emb.T
top = sim.topk(10, dim=1)
""",
        "T4",
        "enlarged-result",
        "[100000, 100000]",
        "in pieces",
    ),
    "cos-allpairs": (
        (),
        """\
feats = torch.randn(3000, 256, device=device)
sim = F.cosine_similarity(feats.unsqueeze(1), feats.unsqueeze(0), dim=-1)
""",
        "8GiB",
        "enlarged-result",
        "[3000, 3000, 256]",
        "F.normalize",
    ),
    "onehot-flat": (
        (),
        """\
vocab = 50000
tokens = torch.randint(0, vocab, (16, 512), device=device)
x = F.one_hot(tokens, vocab).float()
W = torch.randn(vocab, 64, device=device)
y = x @ W
""",
        "T4",
        "enlarged-result",
        "one_hot makes [16, 512, 50000]",
        "F.embedding",
    ),
    "repeat": (
        (),
        """\
query = torch.randn(1, 64, 512, device=device)
keys = torch.randn(4096, 64, 512, device=device)
q = query.repeat(4096, 1, 1)
score = (q * keys).sum(-1)
""",
        "T4",
        "enlarged-result",
        "repeat makes [4096, 64, 512] of [1, 64, 512]",
        "expand()",
    ),
    "tile-mask": (
        (),
        """\
mask = torch.tril(torch.ones(1024, 1024, device=device)).repeat(64, 16, 1, 1)
scores = torch.randn(64, 1, 1024, 1024, device=device)
m = scores.masked_fill(mask == 0, -1e9)
""",
        "T4",
        "enlarged-result",
        "repeat makes [64, 16, 1024, 1024]",
        "expand()",
    ),
    "embedding-adam": (
        (),
        """\
class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(2_000_000, 64); self.items = nn.Embedding(500_000, 64)
    def forward(self, u, i): return (self.users(u) * self.items(i)).sum(-1)
model = Rec().to(device)
opt = torch.optim.Adam(model.parameters())
for _ in range(3):
    u = torch.randint(0, 2_000_000, (1024,), device=device); i = torch.randint(0, 500_000, (1024,), device=device)
    loss = F.mse_loss(model(u, i), torch.ones(1024, device=device))
    opt.zero_grad(); loss.backward(); opt.step()
""",
        "T4",
        "enlarged-result",
        "embedding_dense_backward",
        "sparse=True",
    ),
    "embedding-adam-oom": (
        (),
        """\
class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(2_000_000, 64); self.items = nn.Embedding(500_000, 64)
    def forward(self, u, i): return (self.users(u) * self.items(i)).sum(-1)
model = Rec().to(device)
opt = torch.optim.Adam(model.parameters())
for _ in range(3):
    u = torch.randint(0, 2_000_000, (1024,), device=device); i = torch.randint(0, 500_000, (1024,), device=device)
    loss = F.mse_loss(model(u, i), torch.ones(1024, device=device))
    opt.zero_grad(); loss.backward(); opt.step()
""",
        "2GiB",
        "enlarged-result",
        "embedding_dense_backward",
        "sparse=True",
    ),
    "einsum-attn-oom": (
        (),
        """\
def attention(q, k, v):
    scores = torch.einsum('bhid,bhjd->bhij', q, k) / math.sqrt(q.size(-1))
    p = scores.softmax(-1)
    return torch.einsum('bhij,bhjd->bhid', p, v)
q, k, v = (torch.randn(4, 16, 4096, 64, device=device) for _ in range(3))
out = attention(q, k, v)
""",
        "4GiB",
        "enlarged-result",
        "line 3 asks for 4.00 GiB: bmm",
        "scaled_dot_product_attention",
    ),
    "attn-class-oom": (
        (),
        """\
class SelfAttention(nn.Module):
    def __init__(self, d=512, h=8):
        super().__init__(); self.h = h
        self.qkv = nn.Linear(d, 3*d); self.o = nn.Linear(d, d)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d//self.h).permute(2,0,3,1,4)
        att = (q @ k.transpose(-2,-1)) * (d//self.h)**-0.5
        att = F.softmax(att, dim=-1)
        return self.o((att @ v).transpose(1,2).reshape(b,t,d))
layer = SelfAttention().to(device)
x = torch.randn(16, 4096, 512, device=device)
layer(x).sum().backward()
""",
        "6GiB",
        "enlarged-result",
        "line 9 asks for 8.00 GiB: bmm",
        "scaled_dot_product_attention",
    ),
    "gan-detach-nostep": (
        (),
        """\
G = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024)).to(device)
D = nn.Sequential(nn.Linear(1024, 1024), nn.LeakyReLU(), nn.Linear(1024, 1)).to(device)
optD = torch.optim.Adam(D.parameters())
def d_step(real):
    fake = G(torch.randn(len(real), 128, device=device))
    loss = D(fake).mean() - D(real).mean()
    optD.zero_grad(); loss.backward(); optD.step()
    return loss.item()
for _ in range(4):
    d_step(torch.randn(4096, 1024, device=device))
""",
        "T4",
        "frozen-layers-record",
        "No optimizer changes G",
        "requires_grad_(False)",
    ),
    "dataset-tensor-oom": (
        (),
        """\
X = torch.randn(200000, 1024); y = torch.randint(0, 10, (200000,))
ds = TensorDataset(X.cuda(), y.cuda())
loader = DataLoader(ds, batch_size=64, shuffle=True)
model = nn.Linear(1024, 10).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)
for i, (xb, yb) in enumerate(loader):
    loss = F.cross_entropy(model(xb), yb)
    opt.zero_grad(); loss.backward(); opt.step()
    if i > 5: break
""",
        "600MiB",
        "dataset-on-device",
        "line 3 moves 781.25 MiB",
        "move each batch",
    ),
    "whole-set-forward": (
        (),
        """\
X_train = torch.randn(60000, 784)
X_test = torch.randn(50000, 784).cuda()
model = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
pred = model(X_test).argmax(1)
""",
        "2GiB",
        "missing-no-grad",
        "line 5",
        "no_grad",
    ),
    "model-rerun": (
        (
            """\
def build():
    return nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).to(device)
resnet = build()
opt = torch.optim.Adam(resnet.parameters())
resnet(torch.randn(4, 2048, device=device)).sum().backward(); opt.step()
""",
        ),
        """\
vit = build()
opt2 = torch.optim.Adam(vit.parameters())
vit(torch.randn(4, 2048, device=device)).sum().backward(); opt2.step()
""",
        "700MiB",
        "earlier-cells",
        "512.25 MiB that this cell does not use: resnet",
        "del resnet",
    ),
    "train-output-earlier": (
        (
            """\
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device)
out = model(torch.randn(20000, 1024, device=device))
""",
        ),
        """\
for _ in range(2):
    loss = model(torch.randn(20000, 1024, device=device)).pow(2).mean()
    loss.backward()
""",
        "1.2GiB",
        "earlier-cells",
        "703.12 MiB that this cell does not use: out",
        "del out",
    ),
    "eval-nograd-missing-class": (
        (),
        """\
class Engine:
    def __init__(self, model): self.model = model
    def predict(self, loader):
        self.model.eval()
        res = []
        for (x,) in loader:
            res.append(self.model(x.to(device)).cpu())
        return torch.cat(res)
m = nn.Sequential(*[nn.Sequential(nn.Linear(1024,1024), nn.ReLU()) for _ in range(8)]).to(device)
Engine(m).predict(DataLoader(TensorDataset(torch.randn(8192, 1024)), batch_size=4096))
""",
        "T4",
        "eval-is-not-no-grad",
        "line 8",
        "no_grad",
    ),
    "eval-nograd-missing-one": (
        (),
        """\
m = nn.Sequential(*[nn.Sequential(nn.Linear(1024,1024), nn.ReLU()) for _ in range(8)]).to(device)
m.eval()
out = m(torch.randn(60000, 1024, device=device))
""",
        "1.5GiB",
        "eval-is-not-no-grad",
        "line 4",
        "no_grad",
    ),
    "kvcache": (
        (),
        """\
class Dec(nn.Module):
    def __init__(self, d=512, h=8):
        super().__init__(); self.qkv = nn.Linear(d, 3*d); self.k = None; self.v = None
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.k = k if self.k is None else torch.cat([self.k, k], 1)
        self.v = v if self.v is None else torch.cat([self.v, v], 1)
        return F.scaled_dot_product_attention(q, self.k, self.v)
layers = nn.ModuleList([Dec() for _ in range(4)]).to(device)
x = torch.randn(32, 1, 512, device=device)
with torch.no_grad():
    for t in range(500):
        h = x
        for l in layers: h = l(h)
""",
        "100MiB",
        "growth",
        "in each of 80 passes: layers[*] holds 40.56 MiB",
        "after the loop",
    ),
    "rl-episode": (
        (),
        """\
policy = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 8)).to(device)
opt = torch.optim.Adam(policy.parameters())
for ep in range(50):
    lp = []
    for t in range(200):
        s = torch.randn(256, 256, device=device)
        d = torch.distributions.Categorical(logits=policy(s))
        a = d.sample(); lp.append(d.log_prob(a))
    loss = -torch.stack(lp).sum()
    opt.zero_grad(); loss.backward(); opt.step()
""",
        "100MiB",
        "growth",
        "lp[*]",
        "backward() (line 11) comes after these passes",
    ),
    "conv-big-batch": (
        (),
        """\
net = nn.Sequential(nn.Conv2d(3,64,3,padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64,64,3,padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64,10)).to(device)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    x = torch.randn(256,3,128,128,device=device); y = torch.randint(0,10,(256,),device=device)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
""",
        "4GiB",
        "activations",
        "line 6",
        "save_on_cpu",
    ),
    "lm-logits": (
        (),
        """\
class LM(nn.Module):
    def __init__(self, V=50257, d=256):
        super().__init__(); self.e = nn.Embedding(V, d); self.f = nn.Linear(d, d); self.head = nn.Linear(d, V, bias=False)
    def forward(self, ids, labels=None):
        logits = self.head(torch.tanh(self.f(self.e(ids))))
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1))
        return loss, logits
model = LM().to(device)
opt = torch.optim.AdamW(model.parameters())
for _ in range(2):
    ids = torch.randint(0, 50257, (8, 1024), device=device)
    loss, logits = model(ids, labels=ids)
    opt.zero_grad(); loss.backward(); opt.step()
""",
        "T4",
        "enlarged-result",
        "[8192, 50257]",
        "in pieces of the positions",
    ),
    "lm-logits-oom": (
        (),
        """\
class LM(nn.Module):
    def __init__(self, V=50257, d=256):
        super().__init__(); self.e = nn.Embedding(V, d); self.f = nn.Linear(d, d); self.head = nn.Linear(d, V, bias=False)
    def forward(self, ids, labels=None):
        logits = self.head(torch.tanh(self.f(self.e(ids))))
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1))
        return loss, logits
model = LM().to(device)
opt = torch.optim.AdamW(model.parameters())
for _ in range(2):
    ids = torch.randint(0, 50257, (8, 1024), device=device)
    loss, logits = model(ids, labels=ids)
    opt.zero_grad(); loss.backward(); opt.step()
""",
        "4GiB",
        "enlarged-result",
        "[8192, 50257]",
        "in pieces of the positions",
    ),
}


@pytest.mark.parametrize(
    ("earlier", "cell", "card", "rule", "cause", "change"), LARGE.values(), ids=LARGE
)
def test_the_cause_is_named_first(earlier, cell, card, rule, cause, change, predicted):
    first = predicted(cell, card, (SETUP, *earlier)).advice[0]
    assert first.rule == rule
    assert cause in first.problem
    assert change in first.change


def test_gradients_of_weights_are_no_products_of_all_pairs(predicted):
    cell = (
        "model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).to(device)\n"
        "model(torch.randn(8, 4096, device=device)).mean().backward()"
    )
    report = predicted(cell, "700MiB", (SETUP,))
    assert report.error is None
    assert "enlarged-result" not in [one.rule for one in report.advice]


def test_layers_of_one_pass_are_no_passes(predicted):
    cell = (
        "model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device)\n"
        "for _ in range(2):\n"
        "    loss = model(torch.randn(20000, 1024, device=device)).pow(2).mean()\n"
        "    loss.backward()"
    )
    report = predicted(cell, "500MiB", (SETUP,))
    assert report.oom is not None
    assert "growth" not in [one.rule for one in report.advice]


def test_the_copy_that_fails_half_way_has_not_grown(predicted):
    cell = (
        "model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).to(device)\n"
        "best = copy.deepcopy(model.state_dict())"
    )
    report = predicted(cell, "200MiB", (SETUP,))
    assert report.oom is not None
    assert "growth" not in [one.rule for one in report.advice]


def test_a_forward_pass_that_fails_before_its_backward_is_not_called_useless(predicted):
    _, cell, card, *_ = LARGE["attn-class-oom"]
    report = predicted(cell, card, (SETUP,))
    assert "missing-no-grad" not in [one.rule for one in report.advice]
