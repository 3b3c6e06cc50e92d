# %% valid-metrics | 60MiB | val_losses
class ValMetrics:
    def __init__(self): self.val_losses, self.preds = [], []
    def step(self, out, y):
        self.val_losses.append(F.mse_loss(out, y, reduction="none"))
vm = ValMetrics()
net.eval()
for xb, yb in loader:
    vm.step(net(xb.to(device)), yb.to(device))
# %% confusion-tuples | 60MiB | records
records = []
for step, batch in enumerate(loader):
    x, y = [t.to(device) for t in batch]
    with torch.no_grad():
        p = net(x)
    records.append((step, x, y, p))
# %% queue-of-batches | 60MiB | prefetch|queue|q\b
from queue import Queue
class Prefetcher:
    def __init__(self, loader):
        self.q = []
        for xb, yb in loader: self.q.append((xb.to(device), yb.to(device)))
    def __iter__(self): return iter(self.q)
for xb, yb in Prefetcher(loader):
    optimizer.zero_grad(); criterion(net(xb), yb).backward(); optimizer.step()
# %% total-acc-dict | 60MiB | totals
totals = {"loss": 0, "n": 0}
for xb, yb in loader:
    out = net(xb.to(device))
    totals["loss"] = totals["loss"] + criterion(out, yb.to(device))
    totals["n"] += 1
# %% seq2seq-hidden | 80MiB | state|hidden|detach
class Decoder(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.cell = nn.LSTMCell(d, d); self.state = None
    def forward(self, x):
        self.state = self.cell(x, self.state)
        return self.state[0]
dec = Decoder().to(device)
opt = torch.optim.SGD(dec.parameters(), lr=0.1)
for xb, yb in loader:
    loss = F.mse_loss(dec(xb.to(device)), yb.to(device))
    opt.zero_grad(); loss.backward(retain_graph=True)
# %% memory-reader | 60MiB | memory|mem
mem = torch.zeros(256, 256, device=device)
writer = nn.Linear(256, 256).to(device)
for xb, _ in loader:
    w = torch.softmax(writer(xb.to(device)), -1)
    mem = mem + w.t() @ w
    read = (w @ mem).mean().item()
# %% adversarial | 60MiB | delta|adv
def pgd(x, y, n=150):
    delta = torch.zeros_like(x, requires_grad=True)
    adv = x + delta
    for i in range(n):
        loss = criterion(net(adv), y)
        grad = torch.autograd.grad(loss, delta, retain_graph=True)[0]
        adv = adv + 0.01 * grad.sign() + 0 * net(adv)
    return adv
xb, yb = next(iter(loader))
pgd(xb.to(device), yb.to(device))
# %% ensemble-dict | 120MiB | ensemble
ensemble = {}
for seed in range(10):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).to(device)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    for _ in range(2):
        m(torch.randn(64, 1024, device=device)).pow(2).mean().backward(); opt.step(); opt.zero_grad()
    ensemble[f"seed{seed}"] = m
# %% two-folds-big | 300MiB | nets
nets = []
for fold in range(5):
    m = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(3)]).to(device)
    opt = torch.optim.Adam(m.parameters(), foreach=False)
    for _ in range(2):
        opt.zero_grad(); m(torch.randn(16, 2048, device=device)).sum().backward(); opt.step()
    nets.append(m)
# %% swa-snapshots | 120MiB | snapshots
class SWA:
    def __init__(self): self.snapshots = []
    def collect(self, m): self.snapshots.append({k: v.clone() for k, v in m.state_dict().items()})
m = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(3)]).to(device)
swa = SWA()
for epoch in range(15):
    with torch.no_grad():
        for p in m.parameters(): p.mul_(0.99)
    swa.collect(m)
# %% best-weights | 130MiB | best_wts|deepcopy
def train_model(model, epochs=4):
    best_wts = copy.deepcopy(model.state_dict())
    best = 1e9
    opt = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for e in range(epochs):
        x = torch.randn(64, 1024, device=device)
        loss = model(x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    model.load_state_dict(best_wts)
    return model
train_model(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device))
# %% previous-experiment | 345MiB | resnet_a|earlier
# ## earlier
resnet_a = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(5)]).to(device)
opt_a = torch.optim.SGD(resnet_a.parameters(), lr=0.1, momentum=0.9)
resnet_a(torch.randn(4, 2048, device=device)).sum().backward(); opt_a.step(); opt_a.zero_grad()
# ## cell
def run(width):
    m = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).to(device)
    return m(torch.randn(64, width, device=device)).sum().item()
run(3584)
# %% class-data | 60MiB | Leave the data on the host
class Trainer:
    def __init__(self, X, Y):
        self.X, self.Y = X.to(device), Y.to(device)
    def epoch(self, bs=512):
        for i in range(0, len(self.X), bs):
            optimizer.zero_grad(); criterion(net(self.X[i:i+bs]), self.Y[i:i+bs]).backward(); optimizer.step()
Trainer(X, Y).epoch()
# %% array-double | T4 | float64
class Regressor:
    def __init__(self, d): self.w = torch.zeros(d, 1, dtype=torch.double, device=device, requires_grad=True)
    def fit(self, A, b):
        A, b = torch.as_tensor(A).to(device), torch.as_tensor(b).to(device)
        loss = ((A @ self.w - b) ** 2).mean()
        loss.backward()
        return loss.item()
reg = Regressor(512)
reg.fit(np.random.rand(40000, 512), np.random.rand(40000, 1))
# %% collate-numpy | T4 | float64
def collate(rows): return torch.from_numpy(np.stack(rows))
big = DataLoader([np.random.rand(8192) for _ in range(2048)], batch_size=2048, collate_fn=collate)
for xb in big:
    xb = xb.to(device)
    z = (xb - xb.mean(0)) / xb.std(0)
    print(z.abs().max().item())
# %% predict-loop | T4 | no_grad
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(10)])
    def forward(self, x): return self.body(x)
m = Model().to(device)
def predict(m, X):
    m.eval()
    outs = []
    for i in range(0, len(X), 8192):
        outs.append(m(X[i:i+8192].to(device)).argmax(1).cpu())
    return torch.cat(outs)
predict(m, torch.randn(16384, 512))
# %% gan-class | 150MiB | detach|fake
class GAN:
    def __init__(self):
        self.G = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).to(device)
        self.D = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
        self.optG = torch.optim.Adam(self.G.parameters()); self.optD = torch.optim.Adam(self.D.parameters())
    def train_step(self, real):
        fake = self.G(torch.randn_like(real))
        self.optD.zero_grad()
        (F.softplus(-self.D(real)).mean() + F.softplus(self.D(fake)).mean()).backward(retain_graph=True)
        self.optD.step()
        self.optG.zero_grad()
        F.softplus(-self.D(fake)).mean().backward()
        self.optG.step()
gan = GAN()
for _ in range(2): gan.train_step(torch.randn(2048, 512, device=device))
# %% reinforce-class | 60MiB | episodes|saved|log_probs
class Runner:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4)).to(device)
        self.episodes = []
    def rollout(self, T=20):
        lp = []
        for t in range(T):
            d = torch.distributions.Categorical(logits=self.policy(torch.randn(64, 64, device=device)))
            lp.append(d.log_prob(d.sample()))
        self.episodes.append(torch.stack(lp).sum())
r = Runner()
for ep in range(60): r.rollout()
# %% lm-loss-function | 2GiB | mm makes \[4096, 50257\]
def lm_loss(h, W, targets):
    logits = h @ W.t()
    return F.cross_entropy(logits.float(), targets)
W = nn.Parameter(torch.randn(50257, 128, device=device) * 0.02)
h = torch.randn(4096, 128, device=device, requires_grad=True)
lm_loss(h, W, torch.randint(0, 50257, (4096,), device=device)).backward()
# %% attn-scores-oom | 500MiB | attention|scaled_dot_product
class SelfAttn(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
    def forward(self, x):
        scores = torch.bmm(self.q(x), self.k(x).transpose(1, 2)) / math.sqrt(x.size(-1))
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(weights, self.v(x))
SelfAttn().to(device)(torch.randn(8, 3072, 128, device=device)).sum().backward()
# %% triplet-all | 2GiB | cdist|pieces
def batch_all_triplet(e, margin=0.2):
    d = torch.cdist(e, e)
    t = d.unsqueeze(2) - d.unsqueeze(1) + margin
    return F.relu(t).mean()
batch_all_triplet(torch.randn(900, 64, device=device, requires_grad=True)).backward()
# %% onehot-embed | 2GiB | one_hot|index
class OneHotRNN(nn.Module):
    def __init__(self, V=20000, d=64):
        super().__init__(); self.V = V; self.lin = nn.Linear(V, d)
    def forward(self, ids): return self.lin(F.one_hot(ids, self.V).float())
OneHotRNN().to(device)(torch.randint(0, 20000, (64, 200), device=device))
# %% repeat-context | 1GiB | expand
img = torch.randn(32, 1, 256, 64, device=device)
rep = img.repeat(1, 512, 1, 1)
att = rep.mean(2)
# %% embedding-adamw | 700MiB | embedding|sparse
class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(600000, 64)
    def forward(self, i, j): return (self.item(i) * self.item(j)).sum(-1)
rec = Rec().to(device)
optim_ = torch.optim.AdamW(rec.parameters())
for step in range(2):
    i, j = (torch.randint(0, 600000, (2048,), device=device) for _ in range(2))
    loss = rec(i, j).sigmoid().mean()
    optim_.zero_grad(); loss.backward(); optim_.step()
# %% kv-list | 100MiB | past|cache|keys
past = []
blk = nn.Linear(512, 1024).to(device)
with torch.no_grad():
    x = torch.randn(64, 1, 512, device=device)
    for t in range(800):
        k, v = blk(x).chunk(2, -1)
        past.append((k.clone(), v.clone()))
        x = torch.tanh(v)
# %% distill-teacher | 250MiB | no_grad|teacher
class Distiller:
    def __init__(self):
        self.teacher = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).to(device).eval()
        self.student = nn.Linear(512, 512).to(device)
        self.opt = torch.optim.SGD(self.student.parameters(), lr=0.1)
    def step(self, x):
        t = self.teacher(x)
        loss = F.mse_loss(self.student(x), t.detach())
        self.opt.zero_grad(); loss.backward(); self.opt.step()
d = Distiller()
for _ in range(2): d.step(torch.randn(4096, 512, device=device))
# %% feature-pyramid-hook | 80MiB | grabbed|acts
class Grab:
    def __init__(self, layers):
        self.acts = {}
        for i, l in enumerate(layers): l.register_forward_hook(functools.partial(self.save, i))
    def save(self, i, mod, inp, out): self.acts.setdefault(i, []).append(out)
grab = Grab([net[0], net[2]])
for xb, yb in loader:
    optimizer.zero_grad(); criterion(net(xb.to(device)), yb.to(device)).backward(); optimizer.step()
# %% cached-property | 60MiB | cache|encode
@functools.cache
def encode(idx):
    with torch.no_grad():
        return net(X[idx * 512:(idx + 1) * 512].to(device))
for i in range(100): encode(i).sum().item()
# %% lightning-like | 60MiB | outputs
class LitModule(nn.Module):
    def __init__(self):
        super().__init__(); self.net = net; self.outputs = []
    def validation_step(self, batch, i):
        x, y = batch
        o = self.net(x.to(device))
        self.outputs.append({"loss": criterion(o, y.to(device)), "o": o})
lit = LitModule()
for i, b in enumerate(loader): lit.validation_step(b, i)
# %% neural-ode | 80MiB | traj|states|\bz\b
def odeint(f, z, n):
    traj = [z]
    for i in range(n):
        z = z + 0.01 * f(z)
        traj.append(z)
    return traj
ys = odeint(net, torch.randn(512, 256, device=device), 200)
