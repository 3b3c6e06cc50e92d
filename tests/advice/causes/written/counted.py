# %% prefetch-list-epoch | 80MiB | ^growth .*the list that line 3 builds \(epoch_data\)
def to_dev(batch): return [t.to(device) for t in batch]
epoch_data = list(map(to_dev, loader))
for xb, yb in epoch_data:
    loss = criterion(net(xb), yb); optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% sweep-recreate-self-cycle | 200MiB | ^growth .*a circle of references holds .*gc\.collect
class Runner:
    def __init__(self):
        self.model = nn.Linear(2048, 2048).to(device); self.on_end = self.finish
    def finish(self): return 1
    def go(self): return self.model(torch.randn(8, 2048, device=device)).sum().item()
res = [Runner().go() for _ in range(40)]
# %% experiments-in-circles-collected | 300MiB | ^growth .*a circle of references holds .*gc\.collect
class Experiment:
    def __init__(self): self.net = nn.Linear(2048, 2048).to(device); self.callback = lambda: self
scores = []
for i in range(40):
    e = Experiment()
    scores.append(e.net(torch.randn(8, 2048, device=device)).sum().item())
# %% huge-linear-flatten | 3GiB | ^weights-too-large .*3\.06 GiB more were asked for
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.c = nn.Conv2d(3, 64, 3, padding=1); self.fc = nn.Linear(64 * 112 * 112, 1024)
    def forward(self, x): return self.fc(self.c(x).relu().flatten(1))
m = Net().to(device); o = torch.optim.Adam(m.parameters())
l = m(torch.rand(2, 3, 112, 112, device=device)).mean(); l.backward(); o.step()
# %% gpu-pipeline-augment | 500MiB | ^large-pass .*all 4000 rows
images = torch.randint(0, 255, (4000, 3, 64, 64), dtype=torch.uint8)
imgs = images.to(device).float() / 255
imgs = (imgs - imgs.mean((0, 2, 3), keepdim=True)) / imgs.std((0, 2, 3), keepdim=True)
clf = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10)).to(device); o = torch.optim.SGD(clf.parameters(), .1)
for i in range(0, 4000, 100):
    o.zero_grad(); clf(imgs[i:i+100]).mean().backward(); o.step()
# %% llm-lora-base-grads | 260MiB | ^weights-too-large .*of base that require gradients.*requires_grad_\(False\)
class LoRA(nn.Module):
    def __init__(self, lin, r=4): super().__init__(); self.lin = lin; self.a = nn.Linear(lin.in_features, r, bias=False); self.b = nn.Linear(r, lin.out_features, bias=False)
    def forward(self, x): return self.lin(x) + self.b(self.a(x))
base = nn.Sequential(*[LoRA(nn.Linear(1536, 1536)) for _ in range(12)]).to(device)
opt = torch.optim.AdamW([p for n, p in base.named_parameters() if ".a." in n or ".b." in n], 1e-4)
for step in range(3):
    loss = base(torch.randn(32, 1536, device=device)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% momentum-dict-params | 160MiB | ^optimizer-state .*written by hand
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device)
velocity = {p: torch.zeros_like(p) for p in model.parameters()}
second = {p: torch.zeros_like(p) for p in model.parameters()}
for step in range(3):
    loss = model(torch.randn(16, 1024, device=device)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            velocity[p].mul_(0.9).add_(p.grad, alpha=0.1)
            second[p].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            p.sub_(velocity[p] / (second[p].sqrt() + 1e-8) * 1e-3)
            p.grad = None
# %% sparse-mask-int64 | 700MiB | ^enlarged-result .*are int64, 8 bytes
ids = torch.randint(0, 12, (6144,), device=device)
starts = (ids == 0)
segment = starts.cumsum(0)
doc_mask = (segment[:, None] == segment[None, :]).long()
doc_mask = doc_mask.tril()
n_allowed = doc_mask.sum().item()
# %% whole-test-after-training | 300MiB | ^large-pass .*all of X in one pass
clf = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device); o = torch.optim.Adam(clf.parameters())
for xb, yb in loader:
    l = clf(xb.to(device)).pow(2).mean(); o.zero_grad(); l.backward(); o.step()
acc = (clf(X.to(device)).argmax(1) == 0).float().mean().item()
# %% lion-by-hand-class | 140MiB | ^optimizer-state .*written by hand
class Lion:
    def __init__(self, ps, lr=1e-4): self.ps, self.lr, self.state = list(ps), lr, {}
    @torch.no_grad()
    def step(self):
        for p in self.ps:
            m = self.state.setdefault(p, {"m": torch.zeros_like(p), "slow": p.clone()})
            p.add_(torch.sign(m["m"] * .9 + p.grad * .1), alpha=-self.lr); m["m"].mul_(.99).add_(p.grad, alpha=.01); p.grad = None
mm = nn.Sequential(*[nn.Linear(1200, 1200) for _ in range(6)]).to(device); li = Lion(mm.parameters())
for i in range(3): mm(torch.randn(8, 1200, device=device)).mean().backward(); li.step()
# %% bank-of-keys-and-its-logits | 250MiB | ^growth .*bank holds
enc = nn.Linear(512, 256).to(device); opt = torch.optim.SGD(enc.parameters(), .1)
bank = torch.empty(0, 256, device=device)
for i in range(300):
    z = F.normalize(enc(torch.randn(512, 512, device=device)), dim=1)
    keys = torch.cat([bank, z.detach()])
    logits = z @ keys.T / .07
    loss = F.cross_entropy(logits, torch.randint(0, len(keys), (512,), device=device))
    opt.zero_grad(); loss.backward(); opt.step()
    bank = torch.cat([bank, z.detach()])
