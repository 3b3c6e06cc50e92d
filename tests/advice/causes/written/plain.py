# %% adapters-by-parametrization | 250MiB | ^computed-weights .*line 8, 0\.5 \* \(self\.B @ self\.A\): 20 results of \[1024, 1024\], 80\.00 MiB.*x @ A\.T @ B\.T
import torch.nn.utils.parametrize as P
class LoRAParam(nn.Module):
    def __init__(self, o, i, r=4):
        super().__init__()
        self.A = nn.Parameter(torch.randn(r, i) * 0.01); self.B = nn.Parameter(torch.zeros(o, r))
    def forward(self, W):
        return W + 0.5 * (self.B @ self.A)
ml = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(20)])
for l in ml:
    l.weight.requires_grad_(False); P.register_parametrization(l, "weight", LoRAParam(1024, 1024))
ml.to(device)
opt = torch.optim.AdamW([p for p in ml.parameters() if p.requires_grad])
for _ in range(3):
    loss = ml(torch.randn(32, 1024, device=device)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% weights-unpacked-in-forward | 160MiB | ^computed-weights .*self\.q\.float\(\) \* self\.s: 24 results of \[1024, 1024\], 96\.00 MiB.*checkpoint
class Q8(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("q", torch.randint(-127, 127, (d, d), dtype=torch.int8))
        self.register_buffer("s", torch.full((d, 1), 0.01))
    def forward(self, x):
        w = self.q.float() * self.s
        return F.linear(x, w)
class Ad(nn.Module):
    def __init__(self, d):
        super().__init__(); self.base = Q8(d); self.a = nn.Linear(d, 4, bias=False); self.b = nn.Linear(4, d, bias=False)
    def forward(self, x): return self.base(x) + self.b(self.a(x))
qm = nn.Sequential(*[Ad(1024) for _ in range(24)]).to(device)
opt = torch.optim.AdamW(qm.parameters())
for _ in range(3):
    loss = qm(torch.randn(32, 1024, device=device)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% weights-normalized-in-a-method | 200MiB | ^computed-weights .*line 5, self\.g
class WN(nn.Module):
    def __init__(self, d):
        super().__init__(); self.v = nn.Parameter(torch.randn(d, d)); self.g = nn.Parameter(torch.ones(d, 1))
    def weight(self): return self.g * self.v / self.v.norm(dim=1, keepdim=True)
    def forward(self, x): return F.linear(x, self.weight())
m = nn.Sequential(*[WN(1024) for _ in range(10)]).to(device)
opt = torch.optim.SGD(m.parameters(), .01)
for _ in range(2):
    loss = m(torch.randn(16, 1024, device=device)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% fakes-not-detached-in-functions | 200MiB | ^retained-graph backward\(\) on line 8 goes through G \(line 19\), which the step of od does not.*detach
G = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(256, 256), nn.Tanh())]).to(device)
D = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.Tanh())], nn.Linear(256, 1)).to(device)
og = torch.optim.Adam(G.parameters(), 2e-4); od = torch.optim.Adam(D.parameters(), 2e-4)
def d_step(real, fake):
    od.zero_grad()
    loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    loss.backward(retain_graph=True)
    od.step()
    return loss
def g_step(fake):
    og.zero_grad()
    loss = F.softplus(-D(fake)).mean()
    loss.backward()
    og.step()
    return loss
for _ in range(4):
    real = torch.randn(4096, 256, device=device)
    fake = G(torch.randn(4096, 256, device=device))
    dl = d_step(real, fake)
    gl = g_step(fake)
# %% messages-of-edges-layer-by-layer | 250MiB | ^enlarged-result line 10 holds 90\.00 MiB in 3 results: index makes \[60000, 128\]
N, E, Dm = 2000, 60000, 128
src = torch.randint(0, N, (E,), device=device); dst = torch.randint(0, N, (E,), device=device)
lins = nn.ModuleList(nn.Linear(Dm, Dm) for _ in range(3)).to(device)
h = torch.randn(N, Dm, device=device)
opt = torch.optim.Adam(lins.parameters())
for _ in range(2):
    z = h
    for l in lins:
        msg = F.relu(l(z[src]))
        z = torch.zeros_like(z).index_add(0, dst, msg)
    loss = z.pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% blocks-one-after-the-other | 120MiB | ^activations .*of line 7 .* 56\.00 MiB
blocks = nn.ModuleList(nn.Linear(512, 512) for _ in range(12)).to(device)
opt = torch.optim.SGD(blocks.parameters(), .1)
for step in range(2):
    h = torch.randn(4096, 512, device=device)
    for blk in blocks:
        h = F.relu(blk(h))
    loss = h.pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% weights-by-their-number | 120MiB | ^activations .*of line 7 .* 56\.00 MiB
Ws = [torch.randn(512, 512, device=device, requires_grad=True) for _ in range(12)]
opt = torch.optim.SGD(Ws, .1)
for step in range(2):
    h = torch.randn(4096, 512, device=device)
    for i in range(12):
        h = torch.tanh(h @ Ws[i])
    loss = h.pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% comprehension-in-a-function | 100MiB | ^growth .*comprehension in line 3.*Keep net\(xb\.to\(device\)\)\.detach\(\)
def embed(loader):
    return torch.cat([net(xb.to(device)) for xb, _ in loader])
E = embed(loader)
# %% one-checkpoint-around-all | 140MiB | ^activations .*Checkpoint smaller parts
from torch.utils.checkpoint import checkpoint
deep = nn.Sequential(*[m for _ in range(24) for m in (nn.Linear(256, 256), nn.GELU())]).to(device)
opt = torch.optim.SGD(deep.parameters(), 0.01)
for _ in range(3):
    x = torch.randn(4096, 256, device=device)
    loss = checkpoint(deep, x, use_reentrant=False).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% state-in-a-buffer | 60MiB | ^growth .*loss holds 34\.00 MiB
class SNN(nn.Module):
    def __init__(self, b, d):
        super().__init__(); self.fc = nn.Linear(d, d); self.register_buffer("mem", torch.zeros(b, d)); self.decay = 0.9
    def forward(self, x):
        self.mem = self.decay * self.mem + self.fc(x)
        return torch.sigmoid(self.mem)
snn = SNN(512, 256).to(device)
opt = torch.optim.SGD(snn.parameters(), .1)
loss = 0
for t in range(80):
    loss = loss + snn(torch.randn(512, 256, device=device)).pow(2).mean()
opt.zero_grad(); loss.backward(); opt.step()
# %% adapters-of-an-earlier-cell | 200MiB | ^computed-weights .*line 9, self\.base\.weight \+ self\.B @ self\.A: 19 results
# ## earlier
class LoRALinear(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.01)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
    def forward(self, x):
        merged = self.base.weight + self.B @ self.A
        return F.linear(x, merged, self.base.bias)
model = nn.Sequential(*[LoRALinear(nn.Linear(1024, 1024)) for _ in range(20)]).to(device)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
# ## cell
for step in range(3):
    loss = model(torch.randn(64, 1024, device=device)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
