# %% copies-of-alike-weights | 100MiB | ^growth .*8\.00 MiB in each of 7 passes: traj\[\*\] holds
import torch, torch.nn as nn
net = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]).cuda()
opt = torch.optim.SGD(net.parameters(), lr=.1)
traj = []
for epoch in range(12):
    loss = net(torch.randn(32, 512, device="cuda")).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    for p in net.parameters():
        traj.append(p.detach().clone())
# %% cache-of-a-loaders-data-set | 120MiB | ^growth .*256\.00 KiB in each of 3\d\d passes: cache\[\*\] in CachedDS\(\) holds
import torch, torch.nn as nn
from torch.utils.data import Dataset, DataLoader
class CachedDS(Dataset):
    def __init__(self, n): self.n, self.cache = n, {}
    def __len__(self): return self.n
    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = torch.randn(64, 1024, device="cuda")
        return self.cache[i]
model = nn.Linear(1024, 10).cuda()
opt = torch.optim.SGD(model.parameters(), .1)
for xb in DataLoader(CachedDS(1000), batch_size=8):
    opt.zero_grad(); model(xb).mean().backward(); opt.step()
# %% adam-inside-another | 300MiB | ^optimizer-state The state of Adam
import torch, torch.nn as nn
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=.05, **kw):
        super().__init__(params, dict(rho=rho, **kw)); self.base = base(self.param_groups, **kw)
    @torch.no_grad()
    def first_step(self):
        for g in self.param_groups:
            for p in g["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * g["rho"])
    @torch.no_grad()
    def second_step(self):
        for g in self.param_groups:
            for p in g["params"]: p.data = self.state[p]["old_p"]
        self.base.step()
net = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()
opt = SAM(net.parameters(), torch.optim.Adam, lr=1e-3)
for i in range(3):
    x = torch.randn(64, 2048, device="cuda")
    net(x).pow(2).mean().backward(); opt.first_step(); opt.zero_grad()
    net(x).pow(2).mean().backward(); opt.second_step(); opt.zero_grad()
# %% momenta-by-hand | 260MiB | ^optimizer-state .*written by hand
import torch, torch.nn as nn
def fit(model, lr):
    params = [p for p in model.parameters()]
    m = [torch.zeros_like(p) for p in params]; v = [torch.zeros_like(p) for p in params]
    def step():
        for i, p in enumerate(params):
            m[i].mul_(.9).add_(p.grad, alpha=.1); v[i].mul_(.999).addcmul_(p.grad, p.grad, value=.001)
            p.data.addcdiv_(m[i], v[i].sqrt() + 1e-8, value=-lr)
    return step
net = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()
step = fit(net, 1e-3)
for _ in range(3):
    net(torch.randn(16, 2048, device="cuda")).mean().backward(); step(); net.zero_grad()
# %% outer-products-by-einsum | 600MiB | ^enlarged-result .*outer product
import torch, torch.nn as nn
class Inter(nn.Module):
    def __init__(self, d=128): super().__init__(); self.f = nn.Linear(64, d); self.g = nn.Linear(64, d); self.o = nn.Linear(d*d, 1)
    def forward(self, a, b): return self.o(torch.einsum("bi,bj->bij", self.f(a), self.g(b)).flatten(1))
m = Inter().cuda()
m(torch.randn(4096, 64, device="cuda"), torch.randn(4096, 64, device="cuda")).mean().backward()
# %% outer-products-by-bmm | 600MiB | ^enlarged-result .*outer product
import torch, torch.nn as nn
enc = nn.Linear(32, 96).cuda()
def second_moment(z):
    return torch.bmm(z.unsqueeze(2), z.unsqueeze(1)).mean(0)
for _ in range(2):
    c = second_moment(enc(torch.randn(16384, 32, device="cuda")))
    (c - torch.eye(96, device="cuda")).pow(2).sum().backward()
# %% gradients-of-each-sample | 400MiB | ^enlarged-result .*outer product.*chunk_size
import torch, torch.nn as nn
from torch.func import functional_call, vmap, grad
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
params = {k: v.detach() for k, v in net.named_parameters()}
def loss_fn(p, x, y): return nn.functional.cross_entropy(functional_call(net, p, (x[None],)), y[None])
g = vmap(grad(loss_fn), (None, 0, 0))(params, torch.randn(1024, 256, device="cuda"), torch.randint(10, (1024,), device="cuda"))
# %% outputs-on-a-roomy-card | T4 | ^growth .*16\.00 MiB in each of \d+ passes: embeddings\[\*\] holds
import torch, torch.nn as nn
enc = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
embeddings = []
with torch.no_grad():
    for i in range(200):
        embeddings.append(enc(torch.randn(4096, 512, device="cuda")))
# %% models-on-a-roomy-card | T4 | ^growth .*in each of \d+ passes: zoo\[\*\] holds
import torch, torch.nn as nn
zoo = {}
for width in [1024] * 10:
    m = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda()
    opt = torch.optim.SGD(m.parameters(), .1)
    for _ in range(2):
        l = m(torch.randn(32, 1024, device="cuda")).mean(); opt.zero_grad(); l.backward(); opt.step()
    zoo[len(zoo)] = m
