# %% rollout-beside-a-name-alike | 90MiB | ^growth (?!.*goes through).*ro\.vals\[\*\] holds .*Keep \.item
class Rollout:
    def __init__(self): self.obs, self.acts, self.vals = [], [], []
actor = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 7)).to(device)
ro = Rollout()
for t in range(128):
    obs = torch.randn(128, 256, device=device)
    out = actor(obs)
    ro.obs.append(obs); ro.acts.append(out[:, :6].argmax(1)); ro.vals.append(out[:, 6])
vals = torch.stack(ro.vals).detach()
out = actor(ro.obs[0])
(out[:, :6].log_softmax(1).gather(1, ro.acts[0][:, None]) * vals[0]).mean().backward()
# %% traces-of-second-order | 160MiB | ^growth .*traces\[\*\] holds
wide = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(device)
ps = list(wide.parameters())
def hvp(loss, ps, v):
    g = torch.autograd.grad(loss, ps, create_graph=True)
    return torch.autograd.grad(sum((a * b).sum() for a, b in zip(g, v)), ps, create_graph=True)
traces = []
for xb, yb in loader:
    loss = criterion(wide(xb.to(device)), yb.to(device))
    v = [torch.ones_like(p) for p in ps]
    Hv = hvp(loss, ps, v)
    traces.append(sum((a * b).sum() for a, b in zip(Hv, v)))
# %% hooks-of-several-layers | 60MiB | ^growth .*grew by 2\.\d\d MiB in each of 1\d passes: rows\[\*\]
rows = []
for layer in net:
    if isinstance(layer, nn.Linear): layer.register_forward_hook(lambda m, i, o: rows.append({"out": o}))
for xb, yb in loader:
    loss = criterion(net(xb.to(device)), yb.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% parts-of-each-batch-moved | 40MiB | ^growth .*grew by 516\.00 KiB in each of \d\d passes
labelled = DataLoader(TensorDataset(X, torch.zeros(len(X), 2)), batch_size=512)
def moved(batch): return tuple(part.to(device) for part in batch)
batches = [moved(batch) for batch in labelled]
# %% logits-of-an-earlier-cell-unread | 100MiB | ^earlier-cells val_logits.*del val_logits
# ## earlier
head = nn.Linear(256, 2).to(device)
val_logits = [head(net(xb.to(device)).relu()) for xb, _ in list(loader)[:16]]
# ## cell
for xb, yb in loader:
    optimizer.zero_grad(); criterion(net(xb.to(device)), yb.to(device)).backward(); optimizer.step()
big = torch.randn(64 * 512, 256, device=device)
# %% float64-asked-for-by-name | 100MiB | ^float64-by-accident .*are float64
feat = torch.as_tensor(np.random.rand(20_000, 400)).to(device)
reg = nn.Sequential(nn.Linear(400, 256), nn.ReLU(), nn.Linear(256, 1)).to(device).to(torch.float64)
loss = reg(feat).pow(2).mean(); loss.backward()
# %% checkpoint-beside-another-model | 90MiB | ^checkpoint-on-device .*map_location="cpu"
# ## earlier
import os, tempfile
other = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(2)]).to(device)
path = os.path.join(tempfile.mkdtemp(), "last.pt")
torch.save({"model": nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(5)]).state_dict(), "epoch": 3}, path)
# ## cell
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(5)]).to(device)
ckpt = torch.load(path, map_location=device)
model.load_state_dict(ckpt["model"]); start = ckpt["epoch"] + 1
model(torch.randn(8, 1024, device=device)).pow(2).mean().backward()
torch.optim.SGD(model.parameters(), .1).step()
# %% passes-of-dropout-joined | 16GiB | ^growth (?!.*goes on).*mc holds .*Keep \.item
drop = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(.5), nn.Linear(1024, 10)).to(device)
def mc_predict(model, x, n=50): return torch.stack([model(x).softmax(-1) for _ in range(n)])
mc = mc_predict(drop, torch.randn(512, 256, device=device))
# %% weights-adapted-again-and-again | 16GiB | ^growth (?!.*x holds).*fast holds .*create_graph
def functional(x, w):
    for i in range(0, len(w), 2): x = torch.tanh(F.linear(x, w[i], w[i + 1]))
    return x
meta = [nn.Parameter(torch.randn(s, device=device) * .02) for s in [(1024, 1024), (1024,)] * 2]
def adapt(w, x, k):
    fast = list(w)
    for _ in range(k):
        g = torch.autograd.grad(functional(x, fast).pow(2).mean(), fast, create_graph=True)
        fast = [p - .01 * gi for p, gi in zip(fast, g)]
    return fast
scores = [adapt(meta, torch.randn(64, 1024, device=device), 10)[0].norm().item() for _ in range(2)]
# %% left-by-an-earlier-trainer | 200MiB | ^earlier-cells .*old
# ## earlier
class Trainer:
    def __init__(self):
        self.model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(5)]).to(device)
        self.opt = torch.optim.Adam(self.model.parameters())
    def fit(self):
        for _ in range(2):
            self.opt.zero_grad(); self.model(torch.randn(64, 1024, device=device)).mean().backward(); self.opt.step()
old = Trainer(); old.fit()
# ## cell
new = Trainer()
new.fit()
