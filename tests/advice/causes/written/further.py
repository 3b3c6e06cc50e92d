# %% rnn-sampler-state | 300MiB | ^growth .* h holds .* take h.detach\(\)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(500, 256), nn.GRU(256, 256, batch_first=True), nn.Linear(256, 500)
    def forward(self, tokens, h=None):
        y, h = self.rnn(self.emb(tokens), h)
        return self.out(y), h
lm = Tagger().to(device)
opt = torch.optim.Adam(lm.parameters(), lr=1e-3)
corpus = torch.randint(0, 500, (64, 2000))
h, perplexity = None, []
for start in range(0, 1900, 50):
    chunk = corpus[:, start:start + 51].to(device)
    logits, h = lm(chunk[:, :-1], h)
    nll = F.cross_entropy(logits.reshape(-1, 500), chunk[:, 1:].reshape(-1))
    perplexity.append(nll.exp().item())
print(sum(perplexity) / len(perplexity))

# %% lstm-state-dict-carry | 120MiB | ^growth .* carry\[\*\] holds
# ## earlier
core = nn.LSTMCell(256, 256).to(device)
head = nn.Linear(256, 8).to(device)
# ## cell
carry = {"h": torch.zeros(512, 256, device=device), "c": torch.zeros(512, 256, device=device)}
rewards = []
for t in range(200):
    obs = torch.randn(512, 256, device=device)
    carry["h"], carry["c"] = core(obs, (carry["h"], carry["c"]))
    action = head(carry["h"]).argmax(-1)
    rewards.append(action.float().mean().item())

# %% meter-dataclass | 80MiB | ^growth .* meter\.targets\[\*\] and meter\.outputs\[\*\] hold .*cpu
@dataclass
class Meter:
    outputs: list = field(default_factory=list)
    targets: list = field(default_factory=list)
    def __iadd__(self, pair):
        self.outputs.append(pair[0]); self.targets.append(pair[1])
        return self
meter = Meter()
net.eval()
with torch.no_grad():
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        meter += (net(x), y)

# %% hook-closure-acts | 90MiB | ^growth .* captured\[\*\] holds .*no_grad
captured = {i: [] for i, m in enumerate(net) if isinstance(m, nn.Tanh)}
def grab(i):
    def hook(module, args, out):
        captured[i].append(out)
    return hook
handles = [net[i].register_forward_hook(grab(i)) for i in captured]
for x, _ in loader:
    net(x.to(device))

# %% dict-cache-by-hand | 90MiB | ^growth .* Featurizer\._memo\[\*\] holds
class Featurizer:
    _memo = {}
    @torch.no_grad()
    def __call__(self, key, x):
        if key not in self._memo:
            self._memo[key] = net(x.to(device))
        return self._memo[key]
featurize = Featurizer()
for k in range(200):
    featurize(f"doc-{k}", torch.randn(512, 256)).mean()

# %% best-state-history | 150MiB | ^growth .* checkpoints\[\*\] holds .* copies by deepcopy
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).to(device)
sgd = torch.optim.SGD(big.parameters(), lr=1e-3)
checkpoints = []
for epoch in range(12):
    x = torch.randn(64, 1024, device=device)
    loss = big(x).pow(2).mean()
    sgd.zero_grad(); loss.backward(); sgd.step()
    checkpoints.append({"epoch": epoch, "weights": copy.deepcopy(big.state_dict())})

# %% clone-state-each-epoch | 150MiB | ^growth .* each of 5 passes: snapshots\[\*\] holds
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).to(device)
sgd = torch.optim.SGD(big.parameters(), lr=1e-3)
snapshots = {}
def train_epoch(e):
    loss = big(torch.randn(64, 1024, device=device)).pow(2).mean()
    sgd.zero_grad(); loss.backward(); sgd.step()
    snapshots[e] = {k: v.clone() for k, v in big.state_dict().items()}
for e in range(12): train_epoch(e)

# %% folds-in-results | 200MiB | ^growth .* results\[\*\] holds
def fit_fold(k):
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512)).to(device)
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(128, 512, device=device)
        loss = F.mse_loss(model(x), x)
        opt.zero_grad(); loss.backward(); opt.step()
    return {"fold": k, "model": model, "opt": opt, "loss": loss.item()}
results = []
for k in range(8):
    results.append(fit_fold(k))

# %% teacher-of-earlier-cell | 200MiB | ^earlier-cells .*teacher
# ## earlier
teacher = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).to(device)
with torch.no_grad():
    teacher_out = teacher(torch.randn(64, 2048, device=device)).cpu()
# ## cell
student = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)]).to(device)
opt = torch.optim.Adam(student.parameters())
for _ in range(3):
    x = torch.randn(2048, 1024, device=device)
    loss = student(x).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()

# %% tensordataset-cuda | 120MiB | ^dataset-on-device .*line 3
feats = torch.randn(90000, 256); labels = torch.randint(0, 10, (90000,))
train_set = TensorDataset(feats.cuda(), labels.cuda())
dl = DataLoader(train_set, batch_size=256, shuffle=False)
clf = nn.Linear(256, 10).to(device)
opt = torch.optim.SGD(clf.parameters(), lr=0.1)
for xb, yb in dl:
    loss = F.cross_entropy(clf(xb), yb)
    opt.zero_grad(); loss.backward(); opt.step()

# %% onehot-lm-targets | 390MiB | ^enlarged-result .*one_hot
V = 20000
tokens = torch.randint(0, V, (16, 64), device=device)
dec = nn.Linear(256, V).to(device)
states = torch.randn(16, 64, 256, device=device)
target = F.one_hot(tokens, V).float()
loss = -(target * F.log_softmax(dec(states), -1)).sum(-1).mean()
loss.backward()

# %% repeat-mask | 500MiB | ^enlarged-result .*repeat makes .*expand
x = torch.randn(64, 8, 256, 64, device=device)
bias = torch.randn(1, 1, 256, 256, device=device).repeat(64, 8, 1, 1)
scores = torch.matmul(x, x.transpose(-1, -2)) + bias
out = scores.softmax(-1).mean().item()

# %% embedding-adam | 800MiB | ^enlarged-result .*sparse=True
class Rec(nn.Module):
    def __init__(self, users=400000, dim=64):
        super().__init__()
        self.users = nn.Embedding(users, dim); self.items = nn.Embedding(5000, dim)
    def forward(self, u, i): return (self.users(u) * self.items(i)).sum(-1)
rec = Rec().to(device)
opt = torch.optim.Adam(rec.parameters(), lr=1e-3)
for _ in range(3):
    u = torch.randint(0, 400000, (1024,), device=device); i = torch.randint(0, 5000, (1024,), device=device)
    loss = F.binary_cross_entropy_with_logits(rec(u, i), torch.rand(1024, device=device))
    opt.zero_grad(); loss.backward(); opt.step()

# %% kv-cat-decode | 250MiB | ^growth .* past_[kv] in decode\(\) holds .*full size
wk, wv, wq = (nn.Linear(512, 512).to(device) for _ in range(3))
@torch.no_grad()
def decode(steps):
    h = torch.randn(256, 1, 512, device=device)
    past_k = past_v = None
    for _ in range(steps):
        k, v = wk(h), wv(h)
        past_k = k if past_k is None else torch.cat([past_k, k], 1)
        past_v = v if past_v is None else torch.cat([past_v, v], 1)
        h = F.scaled_dot_product_attention(wq(h), past_k, past_v)
    return h
decode(150)

# %% gan-hinge-functions | 130MiB | ^frozen-layers-record .* gen \(line 9\).*detach
gen = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).to(device)
disc = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
g_opt = torch.optim.Adam(gen.parameters()); d_opt = torch.optim.Adam(disc.parameters())
def d_loss(real, fake): return F.relu(1 - disc(real)).mean() + F.relu(1 + disc(fake)).mean()
for it in range(2):
    for _ in range(2):
        d_opt.zero_grad()
        fake = gen(torch.randn(2048, 512, device=device))
        loss = d_loss(torch.randn(2048, 512, device=device), fake)
        loss.backward()
        d_opt.step()
    g_opt.zero_grad()
    g = -disc(gen(torch.randn(2048, 512, device=device))).mean()
    g.backward(); g_opt.step()

# %% eval-after-earlier | 900MiB | ^earlier-cells .*held
# ## earlier
held = torch.empty(700, 1024, 256, device=device)
enc = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)]).to(device)
# ## cell
def evaluate(model, n=4):
    total = 0.0
    for _ in range(n):
        x = torch.randn(2048, 512, device=device)
        total += model(x).pow(2).mean().item()
    return total / n
enc.eval()
print(evaluate(enc))

# %% bank-moco-linear | 120MiB | ^growth .* bank\.slots\[\*\] holds .*detach
class MemoryBank:
    def __init__(self, size=40): self.slots, self.ptr = {}, 0
    def push(self, feats): self.slots[self.ptr % 1000] = feats; self.ptr += 1
bank = MemoryBank()
for x, _ in loader:
    q = net(x.to(device))
    bank.push(F.normalize(q, dim=-1))
    loss = q.pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()

# %% bank-forward-only-deque | 90MiB | ^growth .* window\[\*\] holds .*no_grad
window = collections.deque(maxlen=500)
def push(x):
    window.append(net(x))
    return torch.stack([w.mean() for w in window]).mean().item()
drift = [push(x.to(device)) for x, _ in loader]

# %% ema-of-activations | 100MiB | ^growth .* center holds .*center\.detach
center = torch.zeros(1, 256, device=device)
distances = []
for x, _ in loader:
    z = net(x.to(device))
    center = 0.9 * center + 0.1 * z.mean(0, keepdim=True)
    distances.append((z - center).norm(dim=1).mean().item())

# %% loss-sum-in-trainer | 90MiB | ^growth .* self\.epoch_loss in fit\(\) holds
class Trainer:
    def __init__(self, model, optim): self.model, self.optim, self.epoch_loss = model, optim, 0.0
    def training_step(self, batch):
        x, y = (t.to(device) for t in batch)
        aux = self.model(x + 0.01).pow(2).mean()
        loss = criterion(self.model(x), y)
        self.optim.zero_grad(set_to_none=True); loss.backward(); self.optim.step()
        self.epoch_loss = self.epoch_loss + loss + 0.1 * aux
    def fit(self, dl):
        for batch in dl: self.training_step(batch)
Trainer(net, optimizer).fit(loader)

# %% hook-backward-grads | 90MiB | ^growth .* grads\[\*\] holds
grads = []
for m in net:
    if isinstance(m, nn.Linear):
        m.weight.register_hook(lambda g: grads.append(g.clone()))
for x, y in loader:
    loss = criterion(net(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()

# %% hook-partial-store | 90MiB | ^growth .* store\[\*\] holds .*cpu
store = collections.defaultdict(list)
def keep(name, mod, inp, out): store[name].append(out.detach())
for n, m in net.named_children(): m.register_forward_hook(functools.partial(keep, n))
with torch.no_grad():
    for x, _ in loader: net(x.to(device))

# %% cache-decorator-own | 90MiB | ^growth .*results\[\*\] holds
def cached(f):
    results = {}
    def inner(i):
        if i not in results: results[i] = f(i)
        return results[i]
    return inner
@cached
def feature(i):
    with torch.no_grad(): return net(X[i * 512:(i + 1) * 512].to(device))
norms = [feature(i).norm().item() for i in range(100)]

# %% cat-in-method | 110MiB | ^growth .* gallery\.feats holds .*join
class Gallery:
    feats = None
    @torch.no_grad()
    def add(self, x):
        f = net(x)
        self.feats = f if self.feats is None else torch.cat([self.feats, f])
gallery = Gallery()
for x, _ in loader: gallery.add(x.to(device))

# %% stack-growing-hist | 110MiB | ^growth .* traj holds .*join
traj = torch.zeros(1, 512, 256, device=device)
state = torch.zeros(512, 256, device=device)
with torch.no_grad():
    for t in range(200):
        state = torch.tanh(net(state))
        traj = torch.vstack((traj, state.unsqueeze(0)))

# %% ensemble-list | 160MiB | ^growth .* 16\.02 MiB in each of 4 passes: what the comprehension in line 10 builds \(ensemble\)
def train_member(seed):
    torch.manual_seed(seed)
    m = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(2)]).to(device)
    o = torch.optim.Adam(m.parameters())
    for _ in range(2):
        x = torch.randn(64, 1024, device=device)
        l = (m(x) - x).pow(2).mean(); o.zero_grad(); l.backward(); o.step()
    return m
ensemble = [train_member(s) for s in range(20)]

# %% grid-search-dict | 200MiB | ^growth .* fitted\[\*\] holds
fitted = {}
for lr in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
    m = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(3)]).to(device)
    o = torch.optim.Adam(m.parameters(), lr=lr)
    for _ in range(2):
        x = torch.randn(64, 1024, device=device)
        l = (m(x) - x).pow(2).mean(); o.zero_grad(); l.backward(); o.step()
    fitted[lr] = (m, o)

# %% autograd-grad-kept | 120MiB | ^growth .* saliency\[\*\] holds .*detach
saliency = []
for x, _ in loader:
    x = x.to(device).requires_grad_()
    g, = torch.autograd.grad(net(x).pow(2).sum(), x, create_graph=True)
    saliency.append(g)

# %% adversarial-carried | 110MiB | ^growth .* adv\.detach
x = X[:512].to(device); y = Y[:512].to(device)
delta = torch.zeros_like(x, requires_grad=True)
adv = x + delta
for i in range(60):
    loss = criterion(net(adv), y)
    g, = torch.autograd.grad(loss, delta, retain_graph=True)
    adv = adv + 0.01 * g.sign() + 0.0 * net(adv)

# %% rbf-kernel-broadcast | 600MiB | ^enlarged-result .*cdist
class RBF(nn.Module):
    def forward(self, a, b): return torch.exp(-((a[:, None, :] - b[None, :, :]) ** 2).sum(2))
def mmd(x, y): k = RBF(); return k(x, x).mean() + k(y, y).mean() - 2 * k(x, y).mean()
src = net(X[:700].to(device)); tgt = net(X[700:1400].to(device))
loss = mmd(src, tgt); optimizer.zero_grad(); loss.backward(); optimizer.step()

# %% gqa-repeat-interleave | 600MiB | ^enlarged-result .*enable_gqa
q = torch.randn(8, 32, 512, 64, device=device); k = torch.randn(8, 4, 512, 64, device=device); v = torch.randn_like(k)
k = k.repeat_interleave(8, dim=1); v = v.repeat_interleave(8, dim=1)
o = F.scaled_dot_product_attention(q, k, v, is_causal=True)

# %% embedding-bag-adamw | 900MiB | ^enlarged-result .*sparse=True
class Text(nn.Module):
    def __init__(self): super().__init__(); self.e = nn.EmbeddingBag(500000, 64); self.f = nn.Linear(64, 4)
    def forward(self, t, o): return self.f(self.e(t, o))
m = Text().to(device); o = torch.optim.AdamW(m.parameters(), lr=1e-3)
for _ in range(2):
    t = torch.randint(0, 500000, (4096,), device=device); off = torch.arange(0, 4096, 16, device=device)
    loss = F.cross_entropy(m(t, off), torch.randint(0, 4, (256,), device=device)); o.zero_grad(); loss.backward(); o.step()

# %% kv-list-layers | 260MiB | ^growth .* cache\[\*\] holds .*full size
layers = nn.ModuleList(nn.Linear(512, 1536) for _ in range(4)).to(device)
cache = [None] * 4
@torch.inference_mode()
def step(h):
    for i, l in enumerate(layers):
        q, k, v = l(h).chunk(3, -1)
        if cache[i] is not None: k, v = torch.cat([cache[i][0], k], 1), torch.cat([cache[i][1], v], 1)
        cache[i] = (k, v)
        h = F.scaled_dot_product_attention(q, k, v)
    return h
h = torch.randn(128, 1, 512, device=device)
for _ in range(100): h = step(h)

# %% gan-wgan-class-fit | 130MiB | ^frozen-layers-record .* self\.gen .*detach
class Wgan:
    def __init__(self):
        self.gen = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).to(device)
        self.critic = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
        self.opt_gen = torch.optim.Adam(self.gen.parameters(), 1e-4); self.opt_critic = torch.optim.Adam(self.critic.parameters(), 1e-4)
    def critic_step(self, real):
        fake = self.gen(torch.randn(len(real), 512, device=device))
        loss = self.critic(fake).mean() - self.critic(real).mean()
        self.opt_critic.zero_grad(); loss.backward(); self.opt_critic.step()
    def gen_step(self, n):
        loss = -self.critic(self.gen(torch.randn(n, 512, device=device))).mean()
        self.opt_gen.zero_grad(); loss.backward(); self.opt_gen.step()
    def fit(self, steps):
        for i in range(steps):
            self.critic_step(torch.randn(2048, 512, device=device))
            if i % 2 == 1: self.gen_step(1024)
Wgan().fit(4)

# %% f64-pandas | 300MiB | ^float64-by-accident
table = np.random.rand(20000, 512)
class Rows(Dataset):
    def __init__(self, t): self.t = t
    def __len__(self): return len(self.t)
    def __getitem__(self, i): return self.t[i], self.t[i, :1]
mlp = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1)).double().to(device)
o = torch.optim.Adam(mlp.parameters())
for x, y in DataLoader(Rows(table), batch_size=2048):
    loss = F.mse_loss(mlp(x.to(device)), y.to(device)); o.zero_grad(); loss.backward(); o.step()

# %% two-cells-rnn | 250MiB | ^growth .* char\.hidden holds .*char\.hidden\.detach
class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc, self.hidden = nn.RNN(256, 512, batch_first=True), nn.Linear(512, 256), None
    def forward(self, x):
        y, self.hidden = self.rnn(x, self.hidden)
        return self.fc(y)
char = CharRNN().to(device)
def score(model, stream):
    out = []
    for x in stream:
        out.append(F.mse_loss(model(x), x).item())
    return out
# ## cell
stream = (torch.randn(64, 32, 256, device=device) for _ in range(60))
print(np.mean(score(char, stream)))

# %% two-cells-trainer-log | 90MiB | ^growth .* fit\.logs\['gap'\]\[\*\] holds
class Fit:
    def __init__(self, model, opt): self.model, self.opt, self.logs = model, opt, {"loss": [], "gap": []}
    def step(self, x, y):
        p = self.model(x)
        loss = criterion(p, y)
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        self.logs["loss"].append(loss.item())
        self.logs["gap"].append((self.model(x) - p).abs().mean())
fit = Fit(net, optimizer)
# ## cell
for x, y in progress(loader):
    fit.step(x.to(device), y.to(device))

# %% nested-loops-outputs | 90MiB | ^growth .* outs\[\*\] holds
by_epoch = []
for epoch in range(3):
    outs = []
    for x, y in loader:
        outs.append(net(x.to(device)))
    by_epoch.append(outs)

# %% namedtuple-results | 90MiB | ^growth .* rows\[\*\] holds .*cpu
Row = collections.namedtuple("Row", "idx emb")
rows = []
with torch.no_grad():
    for i, (x, _) in enumerate(loader):
        rows.append(Row(i, net(x.to(device))))

# %% target-net-copies | 150MiB | ^growth .* targets\[\*\] holds .* copies by deepcopy
q = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(3)]).to(device)
qopt = torch.optim.SGD(q.parameters(), lr=0.01)
targets = []
for it in range(12):
    s = torch.randn(64, 1024, device=device)
    loss = q(s).pow(2).mean()
    qopt.zero_grad(); loss.backward(); qopt.step()
    if it % 2 == 0:
        targets.append(copy.deepcopy(q).eval())

# %% dataset-getitem-cuda-list | 120MiB | ^growth .*builds \(self\.samples\)
class Tiles(Dataset):
    def __init__(self, n):
        self.samples = [torch.randn(256, 256).to(device) for _ in range(n)]
    def __len__(self): return len(self.samples)
    def __getitem__(self, i): return self.samples[i]
conv = nn.Linear(256, 256).to(device)
for t in DataLoader(Tiles(380), batch_size=8):
    conv(t).mean().backward()

# %% leftover-loss-graph | 150MiB | ^earlier-cells .*old_out
wide = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8)]).to(device)
old_out = wide(torch.randn(4096, 512, device=device))
# ## cell
mats = [torch.randn(2048, 2048, device=device) for _ in range(3)]
print((mats[0] @ mats[1] @ mats[2]).norm().item())

# %% cosine-all-pairs-broadcast | 500MiB | ^enlarged-result .*matrix product
u = torch.randn(1000, 128, device=device); w = torch.randn(1000, 128, device=device)
cos = F.cosine_similarity(u[:, None, :], w[None, :, :], dim=-1)
best = cos.argmax(1)

# %% tile-batch | 400MiB | ^enlarged-result .*expand
proto = torch.randn(64, 512, device=device)
query = torch.randn(2048, 512, device=device)
diff = query.unsqueeze(1).repeat(1, 64, 1) * proto.unsqueeze(0).repeat(2048, 1, 1)
s = diff.sum(-1).argmax(1)

# %% gan-fake-d-only-retain | 150MiB | ^frozen-layers-record .*throws away unread.*detach
Gn = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).to(device)
Dn = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
og, od = torch.optim.Adam(Gn.parameters()), torch.optim.Adam(Dn.parameters())
bce = nn.BCEWithLogitsLoss()
for real in [torch.randn(2048, 512, device=device) for _ in range(2)]:
    fake = Gn(torch.randn(2048, 512, device=device))
    od.zero_grad()
    ld = bce(Dn(real), torch.ones(2048, 1, device=device)) + bce(Dn(fake), torch.zeros(2048, 1, device=device))
    ld.backward(retain_graph=True)
    od.step()
    og.zero_grad()
    lg = bce(Dn(fake), torch.ones(2048, 1, device=device))
    lg.backward()
    og.step()

# %% f64-sklearn-like | 300MiB | ^float64-by-accident
feats = np.random.default_rng(0).normal(size=(30000, 256))
class LogReg:
    def fit(self, X, y, steps=3):
        X = torch.as_tensor(X, device=device); y = torch.as_tensor(y, device=device)
        w = torch.zeros(X.shape[1], device=device, dtype=X.dtype, requires_grad=True)
        for _ in range(steps):
            p = torch.sigmoid(X @ w)
            loss = F.binary_cross_entropy(p, y)
            g, = torch.autograd.grad(loss, w)
            w = (w - 0.1 * g).detach().requires_grad_()
        return w
LogReg().fit(feats, (feats[:, 0] > 0).astype(float))

# %% eval-no-grad-missing-oneline | 100MiB | no_grad
deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(24)]).to(device).eval()
acc = np.mean([(deep(x.to(device)).argmax(1) == y.argmax(1).to(device)).float().mean().item() for x, y in loader])
