# %% models-of-separate-statements | 80MiB | ^growth experts\[\*\] holds 32\.03 MiB in 2 entries, made in lines 5 and 8\. Models
def expert():
    def layer():
        return nn.Linear(1024, 1024)
    return nn.Sequential(layer(), nn.ReLU(), layer()).to(device)
def fit(model):
    for _ in range(2):
        model.zero_grad(); model(torch.randn(2, 1024, device=device)).pow(2).mean().backward()
experts = {}
experts["news"] = expert()
fit(experts["news"])
experts["law"] = expert()
fit(experts["law"])
experts["code"] = expert()
# %% tries-again-while-handling | 120MiB | ^stale-exception .*being handled when memory ran out.*skips\[\d\] of forward.*Leave the except block
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(512, 512) for _ in range(8)])
    def forward(self, x):
        skips = []
        for b in self.blocks:
            x = torch.relu(b(x)); skips.append(x)
        return sum(skips)
wide = Wide().to(device)
def attempt(batch):
    wide(batch).pow(2).mean().backward()
def careful(batch):
    try:
        attempt(batch)
    except RuntimeError as error:
        if "out of memory" not in str(error): raise
        torch.cuda.empty_cache()
        for half in batch.chunk(2): attempt(half)
careful(torch.randn(6000, 512, device=device))
# %% hooks-of-every-epoch | 60MiB | ^growth Memory grew by 2\.00 MiB in each of 1\d passes: .*_forward_hooks\[\*\] .*register them once
def attach(model):
    features = {}
    def save(name):
        def hook(module, inputs, output):
            features[name] = output.detach().clone()
        return hook
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear): module.register_forward_hook(save(name))
    return features
for epoch in range(30):
    features = attach(net)
    loss = criterion(net(X[:512].to(device)), Y[:512].to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% context-variable | 60MiB | ^growth .*spans\.get\(\)\[\*\] holds
from contextvars import ContextVar
spans = ContextVar("spans", default=None)
def record(name, value):
    if (store := spans.get()) is not None: store.append((name, value))
spans.set([])
with torch.no_grad():
    for xb, yb in loader: record("out", net(xb.to(device)))
# %% copies-of-copies | 120MiB | ^copied-model .*has the copy before it inside, as \.previous
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(1024, 1024); self.previous = None
    def forward(self, x): return self.body(x)
learner = Learner().to(device)
for task in range(30):
    with torch.no_grad(): learner(torch.randn(2, 1024, device=device))
    learner.previous = copy.deepcopy(learner)
# %% three-numbers-of-a-first-step | 110MiB | ^optimizer-state .*of about 72\.07 MiB, three numbers
mlp = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to(device)
adam = torch.optim.AdamW(mlp.parameters(), amsgrad=True)
mlp(torch.randn(2, 1024, device=device)).mean().backward()
adam.step()
# %% enlarged-inside-of-a-model | 300MiB | ^activations
class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.out = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 1, 1)
    def forward(self, x):
        h = torch.relu(self.up(torch.relu(self.down(x))))
        return self.out(F.interpolate(h, scale_factor=2))
up = Up().to(device)
up(torch.randn(24, 3, 256, 256, device=device)).mean().backward()
# %% rows-for-edges | 500MiB | ^enlarged-result .*index makes \[600000, 64\] of \[20000, 64\].*edges
h = torch.randn(20_000, 64, device=device, requires_grad=True)
row, col = torch.randint(0, 20_000, (2, 600_000), device=device)
att = nn.Linear(128, 1).to(device)
e = att(torch.cat([h[row], h[col]], -1))
(e * h[col]).sum().backward()
# %% all-directions | 500MiB | ^enlarged-result .*\[12000, 12000\].*full_matrices=False
def pca(feats, k=32):
    u, s, vh = torch.linalg.svd(feats - feats.mean(0))
    return feats @ vh[:k].T, s[:k]
proj, s = pca(torch.randn(12_000, 64, device=device))
# %% weights-that-nobody-reads | 500MiB | ^enlarged-result .*need_weights=False
mha = nn.MultiheadAttention(64, 8, batch_first=True).to(device)
x = torch.randn(2, 2048, 64, device=device)
out, _ = mha(x, x, x)
out.pow(2).mean().backward()
# %% memo-of-a-recursion | 60MiB | ^growth .*memo\[\*\] holds .*made in line 7
memo = {}
def solve(n):
    if n in memo:
        return memo[n]
    with torch.no_grad():
        memo[n] = net(torch.randn(512, 256, device=device))
    if n > 0: solve(n - 1)
    return memo[n]
solve(300)
# %% evaluates-block-by-block | 70MiB | ^missing-no-grad .*under torch\.set_grad_enabled\(bool\(training\)\)\.$
def one_epoch(batches, training):
    for xb, yb in batches:
        h = xb.to(device)
        for block in net:
            h = block(h)
        loss = criterion(h, yb.to(device))
        if not training: continue
        optimizer.zero_grad(); loss.backward(); optimizer.step()
one_epoch([(X[:512], Y[:512])], True)
one_epoch([(X[:12000], Y[:12000])], False)
# %% losses-of-inputs-with-gradients | 60MiB | ^growth Memory grew by 1\.00 MiB in each of \d+ passes: losses\[\*\] holds
losses = []
for _ in range(200):
    x = torch.rand(512, 256, device=device, requires_grad=True)
    loss = net(x).mean()
    loss.backward()
    losses.append(loss)
# %% recursion-that-a-cache-remembers | 60MiB | ^growth .*f: cache\[\*\] holds .*cache_clear
@functools.lru_cache(None)
def f(n):
    if n < 2: return torch.randn(512, 256, device=device)
    return f(n - 1) * 0.5 + f(n - 2) * 0.5
f(150)
# %% layer-of-every-pair | 330MiB | ^enlarged-result .*\[36000, 1200\].*every pair
joint = nn.Linear(256, 1200).to(device)
enc, pred = torch.randn(4, 150, 256, device=device), torch.randn(4, 60, 256, device=device)
scores = joint(torch.tanh(enc.unsqueeze(2) + pred.unsqueeze(1)))
loss = scores.log_softmax(-1).mean()
loss.backward()
# %% jacobians-of-all-samples | 300MiB | ^enlarged-result .*A Jacobian has a row for each output of each sample
field = nn.Sequential(nn.Linear(512, 64), nn.Tanh(), nn.Linear(64, 512)).to(device)
points = torch.randn(64, 512, device=device)
J = torch.func.vmap(torch.func.jacrev(field))(points)
divergence = J.diagonal(dim1=1, dim2=2).sum(1)
# %% a-sparse-matrix-made-dense | 300MiB | ^enlarged-result .*_to_dense makes .*holds all the zeros as well
edges = torch.randint(0, 6000, (2, 40000))
graph = torch.sparse_coo_tensor(edges, torch.ones(40000), (6000, 6000)).to(device)
nodes = torch.randn(6000, 32, device=device)
around = (graph.to_dense() @ nodes).relu()
# %% optimizers-of-a-step-that-failed | 220MiB | ^second-optimizer .*holds 64.0. MiB of states
wide = nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048)).to(device)
tried = []
for rate in (1e-3, 1e-4, 1e-5):
    adam = torch.optim.Adam(wide.parameters(), lr=rate)
    tried.append(adam)
    for _ in range(2):
        loss = wide(torch.randn(16, 2048, device=device)).square().mean()
        adam.zero_grad(); loss.backward(); adam.step()
# %% matrices-that-items-keep | 160MiB | ^growth .*items\[\*\]
class Item:
    def __init__(self, i): self.x = torch.full((64, 2048), float(i))
    @functools.cached_property
    def gram(self):
        g = self.x.cuda()
        return g.T @ g
items = [Item(i) for i in range(8)]
# ## cell, or one
total = 0.0
for item in items:
    total += item.gram.sum()
# %% state-of-a-module-in-its-class | 224MiB | ^growth .*self\.h holds .*take self\.h\.detach\(\)
class Teller(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out, self.h = nn.GRUCell(256, 1024), nn.Linear(1024, 1000), None
    def forward(self, words):
        if self.h is None: self.h = torch.zeros(64, 1024, device=words.device)
        told = []
        for word in words:
            self.h = self.cell(word, self.h)
            told.append(self.out(self.h))
        return torch.stack(told)
teller = Teller().to(device)
# ## cell, or one
seen = []
for step in range(6):
    words = torch.randn(8, 64, 256, device=device)
    logits = teller(words)
    seen.append(F.cross_entropy(logits.view(-1, 1000), torch.zeros(512, dtype=torch.long, device=device)).item())
# %% features-of-the-target-too | 600MiB | ^frozen-layers-record .*goes through seen\(target\) .*its part of the .* Call seen\(target\) under torch\.no_grad\(\), or
seen = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))]).to(device)
painter = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64)).to(device)
adam = torch.optim.Adam(painter.parameters())
# ## cell
for _ in range(2):
    given, target = torch.randn(30000, 64, device=device), torch.randn(30000, 64, device=device)
    painted = painter(given)
    loss = F.l1_loss(seen(painted), seen(target))
    adam.zero_grad()
    loss.backward()
    adam.step()
