# %% hook-with-a-closures-list | 32MiB | _forward_hooks\[\d+\]: closure\.captured\[\*\] holds
# ## earlier
def watch(model):
    captured = []
    def hook(mod, inp, out):
        captured.append(out.detach())
    for m in model:
        if isinstance(m, nn.Tanh): m.register_forward_hook(hook)
    return lambda: [c.std().item() for c in captured]
stats = watch(net)
# ## cell
for xb, yb in loader:
    loss = criterion(net(xb.to(device)), yb.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
# %% recursion-of-a-tree | 60MiB | forward\(\) calls itself .*35 calls
# ## earlier
class TreeNet(nn.Module):
    def __init__(self):
        super().__init__(); self.lin = nn.Linear(512, 512); self.mix = nn.Linear(1024, 512)
    def forward(self, x, depth):
        if depth == 0: return x
        h = torch.tanh(self.lin(x))
        left = self.forward(h, depth - 1)
        return torch.relu(self.mix(torch.cat([h, left], -1)))
tree = TreeNet().to(device)
# ## cell
with torch.no_grad():
    r = tree(torch.randn(512, 512, device=device), 60)
print(r.norm())
# %% recursion-with-graphs | 60MiB | search\(\) calls itself .*no_grad
def search(state, depth, best):
    out = net(state)
    value = out.mean()
    if depth == 200: return value
    child = search(out + 0.1 * torch.randn_like(out), depth + 1, best)
    return torch.maximum(value, child)
print(search(torch.randn(512, 256, device=device), 0, None))
# %% blocks-keep-their-last | 60MiB | 12 modules keep 2\.00 MiB each: deep\[\*\]\.last
# ## earlier
class Block(nn.Module):
    def __init__(self, d):
        super().__init__(); self.fc = nn.Linear(d, d); self.last = None
    def forward(self, x):
        self.last = torch.relu(self.fc(x))
        return self.last
deep = nn.Sequential(*[Block(256) for _ in range(40)]).to(device)
# ## cell
with torch.no_grad():
    for i in range(3):
        y = deep(torch.randn(2048, 256, device=device))
        print(y.mean().item())
# %% layers-keep-what-is-cached | 90MiB | modules keep .*stack\.layers\[\*\]\.cached
# ## earlier
class Layer(nn.Module):
    def __init__(self, d):
        super().__init__(); self.fc = nn.Linear(d, 4 * d); self.fc2 = nn.Linear(4 * d, d)
    def forward(self, x):
        h = torch.tanh(self.fc(x))
        self.cached = h
        return x + self.fc2(h)
class Stack(nn.Module):
    def __init__(self):
        super().__init__(); self.layers = nn.ModuleList(Layer(256) for _ in range(12))
    def forward(self, x):
        for l in self.layers: x = l(x)
        return x
stack = Stack().to(device)
# ## cell
with torch.inference_mode():
    for xb, _ in loader: stack(torch.cat([xb, xb, xb, xb]).to(device))
# %% evaluates-where-it-trains | 70MiB | missing-no-grad.*step\(\) goes backward, but not .*phase == 'train'
def step(phase, xb, yb):
    out = net(xb.to(device)); loss = criterion(out, yb.to(device))
    if phase == "train":
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.item()
for phase, rows in (("train", 512), ("val", 12000)):
    print(phase, step(phase, X[:rows], Y[:rows]))
# %% evaluates-in-an-epoch-that-trains | 70MiB | missing-no-grad.*epoch\(\) goes backward, but not .*not train
# ## earlier
class Fit:
    def __init__(self, m): self.m = m; self.opt = torch.optim.Adam(m.parameters())
    def epoch(self, data, train):
        s = 0.
        for xb, yb in data:
            loss = criterion(self.m(xb.to(device)), yb.to(device))
            s += loss.item()
            if not train: continue
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
        return s
fit = Fit(net)
# ## cell
train_dl, val_dl = [(X[:512], Y[:512])], [(X[:12000], Y[:12000])]
print(fit.epoch(train_dl, True), fit.epoch(val_dl, False))
# %% evaluates-in-a-phase | 70MiB | missing-no-grad.*The cell goes backward, but not
for phase in ["train", "val"]:
    rows = 512 if phase == "train" else 12000
    xb, yb = X[:rows].to(device), Y[:rows].to(device)
    out = net(xb)
    loss = criterion(out, yb)
    if phase == "train":
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(phase, loss.item())
# %% folds-that-nothing-names-yet | 90MiB | 16\.02 MiB in each of 3 passes: .* builds \(runs\) holds 48\.05 MiB
class Run:
    def __init__(self, k):
        self.k = k; self.model = nn.Linear(1024, 1024).to(device); self.opt = torch.optim.Adam(self.model.parameters())
    def fit(self, n=2):
        for _ in range(n):
            self.opt.zero_grad(); self.model(torch.randn(32, 1024, device=device)).pow(2).mean().backward(); self.opt.step()
        return self
runs = {f"fold{k}": Run(k).fit() for k in range(12)}
# %% lists-of-one-loop | 80MiB | 1\.50 MiB in each of 38 passes: .*xs\[\*\]
xs, ys, ps = [], [], []
with torch.no_grad():
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        xs.append(xb); ys.append(yb); ps.append(net(xb))
# %% bank-with-keys | 60MiB | mb\.store\[\*\] holds .*\.detach\(\) what is put into mb\.store
# ## earlier
class Bank:
    def __init__(self): self.store = {}
    def put(self, key, v): self.store[key] = v
    def mean(self): return torch.stack([v.mean(0) for v in self.store.values()]).mean(0) if self.store else 0.
mb = Bank()
# ## cell
for i, (xb, yb) in enumerate(loader):
    feat = net(xb.to(device))
    loss = criterion(feat, yb.to(device)) + (feat.mean(0) - mb.mean()).pow(2).mean()
    optimizer.zero_grad(); loss.backward(retain_graph=True); optimizer.step()
    mb.put(i, feat)
# %% hidden-of-a-trainer-beside-a-local | 80MiB | growth .* self\.hidden holds .*self\.hidden\.detach\(\)
class T:
    def __init__(self):
        self.lstm = nn.LSTM(256, 256).to(device); self.hidden = None; self.opt = torch.optim.SGD(self.lstm.parameters(), 0.1)
    def step(self, x, y):
        out, self.hidden = self.lstm(x.view(8, 64, 256), self.hidden)
        loss = criterion(out, y.view(8, 64, 256))
        self.opt.zero_grad(); loss.backward(retain_graph=True); self.opt.step()
        return loss.item()
tr = T()
for xb, yb in loader: tr.step(xb.to(device), yb.to(device))
# %% gradients-of-several-weights-in-a-list | 40MiB | 3\.01 MiB in each of 4 passes: grad_log\[\*\] holds 12\.02 MiB
grad_log = []
big = nn.Sequential(*[nn.Linear(512, 512) for _ in range(3)]).to(device); ob = torch.optim.SGD(big.parameters(), 0.1)
for i in range(60):
    big(torch.randn(32, 512, device=device)).pow(2).mean().backward()
    grad_log.append([p.grad for p in big.parameters()])
    ob.step(); ob.zero_grad()
