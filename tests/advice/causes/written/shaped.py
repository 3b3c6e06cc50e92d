# %% shown-model-loop-variable | 75MiB | ^stale-output Out\[3\]
# ## earlier
def build(depth): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(depth)])
build(10).to(device)
# ## cell
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).to(device)
with torch.no_grad():
    y = model(torch.randn(64, 1024, device=device))
# %% closure-of-earlier-trainer | 160MiB | ^earlier-cells .*train_step
# ## earlier
def make_trainer(width):
    big = nn.Sequential(nn.Linear(1024, width), nn.GELU(), nn.Linear(width, 1024)).to(device)
    opt = torch.optim.AdamW(big.parameters())
    def train_step(x):
        loss = (big(x) - x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        return loss.item()
    return train_step
train_step = make_trainer(3072)
print(train_step(torch.randn(32, 1024, device=device)))
# ## cell
small = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).to(device)
opt = torch.optim.Adam(small.parameters())
for _ in range(3):
    x = torch.randn(32, 1024, device=device)
    loss = F.mse_loss(small(x), x)
    opt.zero_grad(); loss.backward(); opt.step()
# %% topk-by-score | 90MiB | ^growth .*12\.02 MiB in each of 3 passes: saver\.top\[\*\] holds
class TopK:
    def __init__(self, k): self.k, self.top = k, {}
    def maybe_save(self, score, model, opt):
        if len(self.top) < self.k or score > min(self.top):
            self.top[score] = {"model": {n: t.detach().clone() for n, t in model.state_dict().items()},
                               "opt": copy.deepcopy(opt.state_dict())}
            if len(self.top) > self.k:
                self.top.pop(min(self.top))
wide = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).to(device)
adam = torch.optim.Adam(wide.parameters(), lr=1e-3)
saver = TopK(k=20)
for epoch in range(20):
    x = torch.randn(128, 512, device=device)
    loss = F.mse_loss(wide(x), x)
    adam.zero_grad(); loss.backward(); adam.step()
    saver.maybe_save(epoch / 20, wide, adam)
# %% overlapping-windows | 300MiB | ^enlarged-result .*\[49833, 168, 16\] of \[800000\].*Windows that overlap
def make_windows(series, window=168):
    w = series.unfold(0, window, 1)
    return w.permute(0, 2, 1).contiguous()
series = torch.randn(50_000, 16, device=device)
windows = make_windows(series)
# %% all-pairs-recommend | 400MiB | ^enlarged-result .*embedding makes \[1000000, 32\].*pair of a user and an item
class NCF(nn.Module):
    def __init__(self, users, items, d=32):
        super().__init__()
        self.u, self.i = nn.Embedding(users, d), nn.Embedding(items, d)
        self.mlp = nn.Sequential(nn.Linear(2 * d, 64), nn.ReLU(), nn.Linear(64, 1))
    def forward(self, u, i):
        return self.mlp(torch.cat([self.u(u), self.i(i)], dim=-1)).squeeze(-1)
def recommend(model, n_users, n_items, k=10):
    with torch.no_grad():
        users = torch.arange(n_users, device=device).repeat_interleave(n_items)
        items = torch.arange(n_items, device=device).repeat(n_users)
        scores = model(users, items).view(n_users, n_items)
    return scores.topk(k).indices
top = recommend(NCF(500, 2000).to(device), 500, 2000)
# %% cycle-of-each-task | 80MiB | ^growth .*in each of 1\d passes: .* of results of lines 3, 4 and 5 stayed.*create_graph=True
def adapt(task):
    learner = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)).to(device)
    x, y = torch.randn(128, 256, device=device), torch.randn(128, 256, device=device)
    loss = F.mse_loss(learner(x), y)
    loss.backward(create_graph=True)
    return sum(p.grad.pow(2).sum() for p in learner.parameters()).item()
scores = {}
for task in range(60):
    scores[task] = adapt(task)
# %% slices-of-hidden | 60MiB | ^growth .* embeddings\[\*\] holds .*keeps views.*\.clone\(\)
embeddings = {}
@torch.no_grad()
def embed_corpus(dl):
    for i, (xb, _) in enumerate(dl):
        hidden = net(xb.to(device))
        cls = hidden[:, 0]
        embeddings[i] = cls
embed_corpus(loader)
# %% sampled-by-a-library | 40MiB | ^growth .* result\[\*\] in sample\(\) holds .*sample\(\) of random collects it
import random
class Renders(collections.abc.Sequence):
    def __len__(self): return 100_000
    @torch.no_grad()
    def __getitem__(self, i): return net(torch.randn(512, 256, device=device))
subset = random.sample(Renders(), 200)
# %% weights-as-they-are-moved | 60MiB | ^weights-too-large .*put on the device
class Mixer(nn.Module):
    def __init__(self, depth=18, d=1024):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(depth)])
model = Mixer().to(device).eval()
# %% weights-and-their-gradients | 66MiB | ^weights-too-large .*as gradients were made
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).to(device)
opt = torch.optim.SGD(big.parameters(), lr=0.01)
for step in range(3):
    x = torch.randn(8, 1024, device=device)
    loss = F.mse_loss(big(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
# %% state-of-two-as-a-tuple | 60MiB | ^growth .*: state holds .* take state\.detach\(\) \(of each part
class ConvLSTMCell(nn.Module):
    def __init__(self, cin, ch):
        super().__init__()
        self.conv = nn.Conv2d(cin + ch, 4 * ch, 3, padding=1)
    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.conv(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
convlstm = ConvLSTMCell(3, 8).to(device)
opt = torch.optim.Adam(convlstm.parameters())
state = (torch.zeros(4, 8, 32, 32, device=device), torch.zeros(4, 8, 32, 32, device=device))
for clip in range(20):
    loss = 0
    for t in range(4):
        h, c = convlstm(torch.rand(4, 3, 32, 32, device=device), state)
        state = (h, c)
        loss = loss + h.pow(2).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
# %% hidden-of-an-evaluation | T4 | ^growth .*: hidden holds .*no_grad
class LM(nn.Module):
    def __init__(self, v=200, d=128):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(v, d), nn.LSTM(d, d, 2), nn.Linear(d, v)
    def forward(self, x, hidden):
        y, hidden = self.r(self.e(x), hidden)
        return self.o(y), hidden
lm = LM().to(device)
data = torch.randint(0, 200, (1051, 32), device=device)
def evaluate(model, source, bptt=35):
    model.eval()
    total, hidden = 0.0, (torch.zeros(2, 32, 128, device=device), torch.zeros(2, 32, 128, device=device))
    for i in range(0, len(source) - 1, bptt):
        out, hidden = model(source[i:i+bptt], hidden)
        total += F.cross_entropy(out.flatten(0, 1), source[i+1:i+1+bptt].flatten()).item()
    return total
print(evaluate(lm, data))
# %% sum-of-a-closure | 60MiB | ^growth .*: running holds .*running\.detach\(\)
def make_eval(model):
    running = 0.0
    def step(xb, yb):
        nonlocal running
        running = 0.9 * running + 0.1 * criterion(model(xb), yb)
        return running
    return step
step = make_eval(net)
for xb, yb in loader:
    last = step(xb.to(device), yb.to(device))
# %% queue-behind-a-loss | 60MiB | ^growth .*self\.queue
class MoCo:
    def __init__(self, enc, K=4096):
        self.enc, self.K = enc, K
        self.queue = F.normalize(torch.randn(K, 256, device=device), dim=1)
    def loss(self, q, k):
        q, k = F.normalize(self.enc(q), dim=1), F.normalize(self.enc(k), dim=1)
        neg = q @ self.queue.T
        self.queue = torch.cat([k, self.queue])[: self.K]
        logits = torch.cat([(q * k).sum(1, keepdim=True), neg], 1)
        return F.cross_entropy(logits / 0.07, torch.zeros(len(q), dtype=torch.long, device=device))
moco = MoCo(net)
for step in range(100):
    x = torch.randn(128, 256, device=device)
    loss = moco.loss(x, x + 0.1 * torch.randn_like(x))
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
