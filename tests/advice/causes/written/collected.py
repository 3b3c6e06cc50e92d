# %% history-dict | 60MiB | history\[
history = {"train_loss": [], "train_acc": []}
for epoch in range(3):
    for step, (xb, yb) in enumerate(loader):
        xb, yb = xb.to(device), yb.to(device)
        pred = net(xb)
        loss = criterion(pred, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history["train_loss"].append(loss.item())
        history["train_acc"].append((pred - yb).abs())
# %% plus-equals-list | 60MiB | preds
net.eval()
preds = []
for i, (xb, _) in enumerate(loader):
    preds += [net(xb.to(device))]
preds = torch.cat(preds)
# %% cat-in-loop | 60MiB | all_feats
def extract(net, loader):
    all_feats = torch.empty(0, 256, device=device)
    for xb, _ in loader:
        f = net(xb.to(device))
        all_feats = torch.cat((all_feats, f), dim=0)
    return all_feats
feats = extract(net, loader)
# %% enumerate-dict | 60MiB | results
class Bar:
    def __init__(self, it): self.it = it
    def __iter__(self):
        for x in self.it: yield x
    def set_postfix(self, **kw): pass
results = {}
bar = Bar(loader)
for idx, (xb, yb) in enumerate(bar):
    out = net(xb.to(device))
    results[idx] = {"pred": out, "target": yb}
    bar.set_postfix(n=len(results))
# %% callback-logs | 60MiB | logs|batches
class Callback:
    def on_batch_end(self, batch, logs): ...
class History(Callback):
    def __init__(self): self.batches = []
    def on_batch_end(self, batch, logs): self.batches.append(logs)
class Learner:
    def __init__(self, net, loader, cbs):
        self.net, self.loader, self.cbs = net, loader, cbs
    def fit_one(self):
        for i, (xb, yb) in enumerate(self.loader):
            xb, yb = xb.to(device), yb.to(device)
            out = self.net(xb)
            loss = criterion(out, yb)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            for cb in self.cbs:
                cb.on_batch_end(i, {"loss": loss, "output": out})
hist = History()
learn = Learner(net, loader, [hist])
learn.fit_one()
# %% epoch-stats-dataclass | 60MiB | stats|losses
@dataclass
class Config:
    lr: float = 1e-3
    epochs: int = 2
@dataclass
class EpochStats:
    losses: list = field(default_factory=list)
def train(cfg):
    stats = EpochStats()
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        for xb, yb in loader:
            opt.zero_grad()
            per_sample = F.mse_loss(net(xb.to(device)), yb.to(device), reduction="none")
            per_sample.mean().backward()
            opt.step()
            stats.losses.append(per_sample)
    return stats
stats = train(Config())
# %% average-meter | 60MiB | meter\.sum|sum
class AverageMeter:
    def __init__(self): self.reset()
    def reset(self): self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
meter = AverageMeter()
net.eval()
for xb, yb in loader:
    loss = criterion(net(xb.to(device)), yb.to(device))
    meter.update(loss, xb.size(0))
print(meter.count)
# %% hook-closure | 60MiB | features
features = []
def hook(module, inp, out):
    features.append(out)
handle = net[2].register_forward_hook(hook)
with torch.no_grad():
    for xb, _ in loader:
        net(xb.to(device))
handle.remove()
# %% lru-cache | 60MiB | embed|cache
@functools.lru_cache(maxsize=None)
def embed(i):
    return net(X[i * 512:(i + 1) * 512].to(device))
sims = []
for i in range(100):
    e = embed(i)
    sims.append(float(e.mean()))
# %% epochs-nested | 60MiB | log
log = {}
for epoch in range(2):
    log[epoch] = {"val": []}
    for xb, yb in loader:
        with torch.no_grad():
            log[epoch]["val"].append(net(xb.to(device)))
# %% replay-deque | 60MiB | buffer|memory
from collections import deque, namedtuple
Transition = namedtuple("Transition", "state action reward next_state")
class ReplayMemory:
    def __init__(self, capacity): self.memory = deque([], maxlen=capacity)
    def push(self, *args): self.memory.append(Transition(*args))
buffer = ReplayMemory(100000)
state = torch.randn(256, 256, device=device)
for t in range(400):
    q = net(state)
    action = q.argmax(1)
    next_state = torch.tanh(state + 0.01 * torch.randn_like(state))
    buffer.push(state, action, torch.rand(256, device=device), next_state)
    state = next_state
# %% attn-maps-in-forward | 100MiB | maps
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d); self.k = nn.Linear(d, d); self.v = nn.Linear(d, d)
        self.attn_maps = []
    def forward(self, x):
        a = (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1)
        self.attn_maps.append(a)
        return x + a @ self.v(x)
blk = Block(64).to(device)
opt = torch.optim.Adam(blk.parameters())
for step in range(100):
    x = torch.randn(8, 256, 64, device=device)
    opt.zero_grad()
    loss = blk(x).pow(2).mean()
    loss.backward()
    opt.step()
# %% running-loss-trainer | 60MiB | running_loss|epoch_loss
class Trainer:
    def __init__(self, net, loader):
        self.net, self.loader = net, loader
        self.epoch_loss = 0.0
    def validate(self):
        self.net.eval()
        for xb, yb in self.loader:
            loss = criterion(self.net(xb.to(device)), yb.to(device))
            self.epoch_loss += loss
        return self.epoch_loss / len(self.loader)
t = Trainer(net, loader)
val = t.validate()
# %% ema-loss | 60MiB | smooth|ema
smooth = None
for xb, yb in loader:
    loss = criterion(net(xb.to(device)), yb.to(device))
    smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
print("done")
# %% simple-namespace | 60MiB | run\.|outputs
from types import SimpleNamespace
run = SimpleNamespace(step=0, outputs=[])
def training_step(batch):
    x, y = batch
    out = net(x.to(device))
    loss = criterion(out, y.to(device))
    run.outputs.append({"loss": loss, "out": out.detach()})
    run.step += 1
    return loss
for batch in loader:
    loss = training_step(batch)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% generator-list | 60MiB | embeddings
def embeddings_of(net, loader):
    for xb, _ in loader:
        yield net(xb.to(device))
embeddings = list(embeddings_of(net, loader))
# %% module-level-global | 60MiB | val_outputs
val_outputs = []
def validation_step(batch, batch_idx):
    x, y = batch
    y_hat = net(x.to(device))
    val_outputs.append(y_hat)
    return F.mse_loss(y_hat, y.to(device))
def validation_epoch_end():
    return torch.cat(val_outputs).mean()
with torch.no_grad():
    for i, b in enumerate(loader):
        validation_step(b, i)
score = validation_epoch_end()
# %% lstm-hidden-class | 100MiB | hidden|detach
class CharTrainer:
    def __init__(self):
        self.rnn = nn.LSTM(128, 128, batch_first=True).to(device)
        self.head = nn.Linear(128, 128).to(device)
        self.hidden = None
        self.opt = torch.optim.SGD([*self.rnn.parameters(), *self.head.parameters()], lr=0.1)
    def step(self, x, y):
        out, self.hidden = self.rnn(x, self.hidden)
        loss = F.mse_loss(self.head(out), y)
        self.rnn.zero_grad(); self.head.zero_grad()
        loss.backward(retain_graph=True)
        return loss.item()
tr = CharTrainer()
for i in range(60):
    x = torch.randn(64, 50, 128, device=device)
    tr.step(x, x)
# %% gru-stateful-eval | 60MiB | \bh\b|state
gru = nn.GRUCell(256, 256).to(device)
h = torch.zeros(512, 256, device=device)
outs = 0.0
for xb, yb in loader:
    h = gru(xb.to(device), h)
    outs += h.mean().item()
# %% queue-with-grads | 60MiB | self\.queue
class MoCo(nn.Module):
    def __init__(self, K=4096):
        super().__init__()
        self.q = nn.Linear(256, 256); self.k = nn.Linear(256, 256)
        self.queue = torch.randn(K, 256, device=device)
        self.K = K
    def forward(self, x):
        q, k = F.normalize(self.q(x)), F.normalize(self.k(x))
        l_neg = q @ self.queue.t()
        self.queue = torch.cat([k, self.queue])[: self.K]
        return (q * k).sum(1).mean() - l_neg.mean()
moco = MoCo(2048).to(device)
for xb, _ in loader:
    loss = moco(xb.to(device))
    moco.zero_grad()
    loss.backward(retain_graph=True)
# %% prototypes | 60MiB | proto
proto = torch.zeros(512, 256, device=device)
losses = []
for i, (xb, yb) in enumerate(loader):
    feat = net(xb.to(device))
    proto = 0.9 * proto + 0.1 * feat
    losses.append(float((feat - proto).pow(2).mean()))
# %% pgd-no-detach | 60MiB | x_adv|adv
def attack(x, y, steps=200, alpha=0.01):
    x_adv = x.clone().requires_grad_(True)
    for _ in range(steps):
        loss = criterion(net(x_adv), y)
        g, = torch.autograd.grad(loss, x_adv, create_graph=True)
        x_adv = x_adv + alpha * g.sign()
    return x_adv
xb, yb = next(iter(loader))
adv = attack(xb.to(device), yb.to(device))
# %% ddpm-sample | 100MiB | no_grad|\bx\b|img
class Diffusion:
    def __init__(self, T=200):
        self.T = T
        self.beta = torch.linspace(1e-4, 0.02, T, device=device)
    def p_sample(self, x, t):
        eps = net(x)
        return (x - self.beta[t] * eps) / (1 - self.beta[t]).sqrt() + self.beta[t].sqrt() * torch.randn_like(x)
    def sample(self, n):
        img = torch.randn(n, 256, device=device)
        for t in reversed(range(self.T)):
            img = self.p_sample(img, t)
        return img
samples = Diffusion().sample(512)
# %% xl-mems | 100MiB | mems
class XL(nn.Module):
    def __init__(self, d=128, L=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(L))
    def forward(self, x, mems=None):
        new = []
        for i, l in enumerate(self.layers):
            m = torch.zeros_like(x) if mems is None else mems[i]
            x = torch.tanh(l(torch.cat([x, m], -1)))
            new.append(x)
        return x, new
xl = XL().to(device)
opt = torch.optim.SGD(xl.parameters(), lr=0.01)
mems = None
for step in range(100):
    x = torch.randn(16, 64, 128, device=device)
    out, mems = xl(x, mems)
    total = out.mean().item()
# %% langevin | 60MiB | samples|\bz\b
z = torch.randn(512, 256, device=device, requires_grad=True)
for k in range(300):
    energy = net(z).pow(2).sum()
    grad = torch.autograd.grad(energy, z, create_graph=True)[0]
    z = z - 0.5 * 1e-2 * grad + 0.1 * torch.randn_like(z)
# %% deepcopy-best-if | 120MiB | deepcopy|best
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).to(device)
best_loss, best_model = float("inf"), None
saved = []
for epoch in range(10):
    with torch.no_grad():
        val = big(torch.randn(32, 1024, device=device)).pow(2).mean() - epoch
    if val.item() < best_loss:
        best_loss = val.item()
        best_model = copy.deepcopy(big)
        saved.append(best_model)
# %% deepcopy-best-class | 125MiB | deepcopy|best
class EarlyStopping:
    def __init__(self, patience=3):
        self.best, self.best_model, self.bad, self.patience = None, None, 0, patience
    def __call__(self, loss, model):
        if self.best is None or loss < self.best:
            self.best = loss
            self.best_model = copy.deepcopy(model)
            self.bad = 0
        else:
            self.bad += 1
        return self.bad >= self.patience
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device)
opt = torch.optim.SGD(big.parameters(), lr=1e-3)
stopper = EarlyStopping()
for epoch in range(5):
    x = torch.randn(64, 1024, device=device)
    loss = (big(x) - x).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if stopper(loss.item(), big):
        break
# %% state-dict-history | 120MiB | state_dict|checkpoints
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).to(device)
opt = torch.optim.SGD(big.parameters(), lr=1e-3)
checkpoints = []
for epoch in range(20):
    x = torch.randn(64, 1024, device=device)
    loss = big(x).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    checkpoints.append({"epoch": epoch, "state": copy.deepcopy(big.state_dict())})
# %% old-model-name | 200MiB | \bold\b
# ## earlier
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]).to(device)
# ## cell
old = model
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]).to(device)
with torch.no_grad():
    y = model(torch.randn(64, 2048, device=device))
# %% ppo-old-policy | 160MiB | old_policy|old_policies|policies
policy = nn.Sequential(nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 1024)).to(device)
opt = torch.optim.SGD(policy.parameters(), lr=1e-4)
old_policies = []
for it in range(20):
    old_policies.append(copy.deepcopy(policy))
    s = torch.randn(256, 1024, device=device)
    with torch.no_grad():
        ref = old_policies[-1](s)
    loss = (policy(s) - ref - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% fold-models | 150MiB | models|fold
def build():
    return nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
models = []
for fold in range(5):
    m = build().to(device)
    o = torch.optim.Adam(m.parameters())
    for _ in range(3):
        x = torch.randn(64, 1024, device=device)
        loss = m(x).pow(2).mean()
        o.zero_grad(); loss.backward(); o.step()
    models.append(m)
# %% fold-trainers | 150MiB | trainers|folds
class FoldTrainer:
    def __init__(self, k):
        self.k = k
        self.model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).to(device)
        self.opt = torch.optim.Adam(self.model.parameters())
    def run(self):
        for _ in range(2):
            x = torch.randn(64, 1024, device=device)
            self.opt.zero_grad()
            self.model(x).pow(2).mean().backward()
            self.opt.step()
        return 0.5
trainers = {}
for k in range(6):
    trainers[k] = FoldTrainer(k)
    trainers[k].run()
# %% model-of-earlier-cell | 250MiB | baseline
# ## earlier
baseline = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).to(device)
_ = baseline(torch.randn(4, 2048, device=device)).sum().item()
# ## cell
wide = nn.Sequential(*[nn.Linear(3072, 3072) for _ in range(4)]).to(device)
opt = torch.optim.Adam(wide.parameters())
for _ in range(2):
    x = torch.randn(64, 3072, device=device)
    opt.zero_grad(); wide(x).pow(2).mean().backward(); opt.step()
# %% rerun-model-cell | 150MiB | \bmodel\b
# ## earlier
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]).to(device)
# ## cell
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]).to(device)
out = model(torch.randn(4, 2048, device=device)).sum().item()
# %% tensordataset-cuda | 80MiB | on the host
inputs = torch.randn(40000, 256)
targets = torch.randn(40000, 256)
ds = TensorDataset(inputs.cuda(), targets.cuda())
dl = DataLoader(ds, batch_size=512, shuffle=True)
for xb, yb in dl:
    loss = criterion(net(xb), yb)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% dataset-init-cuda | 60MiB | Leave the data on the host
class MyData(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 256).to(device)
        self.y = torch.randn(n, 256).to(device)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i], self.y[i]
train_ds = MyData(50000)
for xb, yb in DataLoader(train_ds, batch_size=256):
    loss = criterion(net(xb), yb)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% dataset-fits | T4 | data set|whole|x_all|batch
x_all = torch.randn(100000, 256).to(device)
y_all = torch.randn(100000, 256).to(device)
for epoch in range(1):
    for i in range(0, 2048, 512):
        loss = criterion(net(x_all[i:i + 512]), y_all[i:i + 512])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% float64-dataset | T4 | float64|float32
class NumpySet(Dataset):
    def __init__(self, n=2048):
        self.X = np.random.rand(n, 512)
        self.y = np.random.rand(n, 1)
    def __len__(self): return len(self.X)
    def __getitem__(self, i): return torch.from_numpy(self.X[i]), torch.from_numpy(self.y[i])
mlp = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1)).double().to(device)
opt = torch.optim.Adam(mlp.parameters())
for xb, yb in DataLoader(NumpySet(), batch_size=1024):
    opt.zero_grad()
    F.mse_loss(mlp(xb.to(device)), yb.to(device)).backward()
    opt.step()
# %% float64-dataset-device | T4 | float64|float32
class Frames(Dataset):
    def __init__(self, arr, labels):
        self.x = torch.tensor(arr, device=device)
        self.y = torch.tensor(labels, device=device)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i].float(), self.y[i].float()
ds = Frames(np.random.randn(2000, 4096), np.random.randn(2000, 1))
head = nn.Linear(4096, 1).to(device)
for xb, yb in DataLoader(ds, batch_size=1024):
    F.mse_loss(head(xb), yb).backward()
# %% batches-on-device | 60MiB | batches|comprehension in line 2 builds
batches = [(xb.to(device), yb.to(device)) for xb, yb in loader]
for xb, yb in batches:
    optimizer.zero_grad(); criterion(net(xb), yb).backward(); optimizer.step()
# %% model-double | T4 | double|float64
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(1024, 4096); self.fc2 = nn.Linear(4096, 10)
    def forward(self, x): return self.fc2(F.relu(self.fc1(x)))
model = Net().to(device).double()
x = torch.tensor(np.random.rand(4096, 1024)).to(device)
y = torch.randint(0, 10, (4096,), device=device)
loss = F.cross_entropy(model(x), y)
loss.backward()
# %% whole-test-set | 100MiB | whole|batch|no_grad|at once
def accuracy(net, X, Y):
    net.eval()
    with torch.no_grad():
        out = net(X.to(device))
        return (out - Y.to(device)).abs().mean().item()
acc = accuracy(net, X, Y)
# %% cache-in-dataset | 60MiB | cache
class Cached(Dataset):
    def __init__(self, X): self.X, self.cache = X, {}
    def __len__(self): return len(self.X)
    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.X[i].to(device)
        return self.cache[i]
ds = Cached(X.view(100, 512, 256))
for xb in DataLoader(ds, batch_size=4):
    with torch.no_grad():
        net(xb).mean().item()
# %% backward-create-graph | 80MiB | create_graph
for i, (xb, yb) in enumerate(loader):
    loss = criterion(net(xb.to(device)), yb.to(device))
    loss.backward(create_graph=True)
    if i % 50 == 49:
        optimizer.step(); optimizer.zero_grad()
# %% grad-norm-log | 80MiB | norms|create_graph
norms = []
for xb, yb in loader:
    x = xb.to(device).requires_grad_()
    loss = criterion(net(x), yb.to(device))
    g, = torch.autograd.grad(loss, x, create_graph=True)
    penalty = (g.norm(2, dim=1) - 1).pow(2).mean()
    optimizer.zero_grad()
    (loss + 10 * penalty).backward()
    optimizer.step()
    norms.append(penalty)
# %% evaluate-no-nograd | 250MiB | no_grad
deep = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).to(device)
def evaluate(model, batches):
    model.eval()
    correct = 0
    for x in batches:
        logits = model(x.to(device))
        correct += (logits.argmax(1) == 0).sum().item()
    return correct
evaluate(deep, [torch.randn(8192, 512) for _ in range(3)])
# %% validate-method | T4 | no_grad
class Engine:
    def __init__(self):
        self.model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).to(device)
    def validate(self, batches):
        self.model.eval()
        losses = []
        for x in batches:
            out = self.model(x.to(device))
            losses.append(F.mse_loss(out, x.to(device)).item())
        return sum(losses) / len(losses)
eng = Engine()
eng.validate([torch.randn(8192, 512) for _ in range(2)])
# %% single-inference | 330MiB | no_grad
cnn = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).to(device)
cnn.eval()
imgs = torch.randn(16, 3, 224, 224, device=device)
probs = cnn(imgs).softmax(1)
print(probs.argmax(1).cpu())
# %% kept-out-two-cells | 200MiB | \bout\b
# ## earlier
deep = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]).to(device)
out = deep(torch.randn(4096, 512, device=device))
# ## cell
opt = torch.optim.SGD(deep.parameters(), lr=0.01)
x = torch.randn(4096, 512, device=device)
loss = deep(x).pow(2).mean()
loss.backward()
opt.step()
# %% predict-proba | T4 | no_grad
class Classifier:
    def __init__(self, net): self.net = net
    def predict_proba(self, X, bs=8192):
        chunks = []
        for i in range(0, len(X), bs):
            chunks.append(F.softmax(self.net(X[i:i + bs].to(device)), dim=1).cpu().detach().numpy())
        return np.concatenate(chunks)
clf = Classifier(net)
p = clf.predict_proba(X)
# %% gan-fake-flat | 120MiB | detach|fake|changes G
G = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).to(device)
D = nn.Sequential(nn.Linear(512, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(device)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
for i in range(4):
    real = torch.randn(2048, 512, device=device)
    z = torch.randn(2048, 512, device=device)
    fake = G(z)
    opt_d.zero_grad()
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    d_loss.backward()
    opt_d.step()
# %% gan-fake-both | 150MiB | detach|fake
G = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).to(device)
D = nn.Sequential(nn.Linear(512, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(device)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
def train_d(real, fake):
    opt_d.zero_grad()
    p_real, p_fake = D(real), D(fake)
    loss = bce(p_real, torch.ones_like(p_real)) + bce(p_fake, torch.zeros_like(p_fake))
    loss.backward()
    opt_d.step()
    return loss.item()
def train_g(n):
    opt_g.zero_grad()
    p = D(G(torch.randn(n, 512, device=device)))
    loss = bce(p, torch.ones_like(p))
    loss.backward()
    opt_g.step()
    return loss.item()
for i in range(3):
    real = torch.randn(2048, 512, device=device)
    fake = G(torch.randn(2048, 512, device=device))
    ld = train_d(real, fake)
    lg = train_g(2048)
# %% gan-critic-retain | 150MiB | detach|gen|fake|retain
class WGAN:
    def __init__(self):
        self.g = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).to(device)
        self.c = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
        self.og = torch.optim.RMSprop(self.g.parameters(), lr=5e-5)
        self.oc = torch.optim.RMSprop(self.c.parameters(), lr=5e-5)
    def step(self, real):
        gen = self.g(torch.randn(real.size(0), 512, device=device))
        for _ in range(5):
            self.oc.zero_grad()
            loss_c = self.c(gen).mean() - self.c(real).mean()
            loss_c.backward(retain_graph=True)
            self.oc.step()
        self.og.zero_grad()
        (-self.c(self.g(torch.randn(real.size(0), 512, device=device))).mean()).backward()
        self.og.step()
w = WGAN()
for _ in range(2):
    w.step(torch.randn(2048, 512, device=device))
# %% reinforce-episodes | 60MiB | log_probs|saved
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(64, 1024); self.l2 = nn.Linear(1024, 4)
        self.saved_log_probs, self.rewards = [], []
    def forward(self, x): return F.softmax(self.l2(F.relu(self.l1(x))), dim=1)
policy = Policy().to(device)
opt = torch.optim.Adam(policy.parameters())
def run_episode(T=50):
    for t in range(T):
        s = torch.randn(32, 64, device=device)
        m = torch.distributions.Categorical(policy(s))
        a = m.sample()
        policy.saved_log_probs.append(m.log_prob(a))
        policy.rewards.append(1.0)
for ep in range(20):
    run_episode()
    loss = torch.stack(policy.saved_log_probs[-50:]).sum()
    opt.zero_grad(); loss.backward(retain_graph=True); opt.step()
    policy.rewards.clear()
# %% actor-critic-values | 60MiB | values
values = []
actor = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4)).to(device)
critic = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
for episode in range(40):
    log_probs = []
    for t in range(20):
        s = torch.randn(64, 64, device=device)
        dist = torch.distributions.Categorical(logits=actor(s))
        a = dist.sample()
        log_probs.append(dist.log_prob(a))
        values.append(critic(s))
    loss = -torch.stack(log_probs).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% retain-graph-needless | 150MiB | retain_graph
deep = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]).to(device)
opt = torch.optim.SGD(deep.parameters(), lr=0.01)
for i in range(4):
    x = torch.randn(2048, 512, device=device)
    loss = deep(x).pow(2).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
# %% lm-logits-hand | 2GiB | logits|last layer and the loss
class TinyLM(nn.Module):
    def __init__(self, V=50257, d=128):
        super().__init__()
        self.emb = nn.Embedding(V, d); self.body = nn.Linear(d, d); self.head = nn.Linear(d, V, bias=False)
    def forward(self, ids, targets=None):
        x = torch.tanh(self.body(self.emb(ids)))
        logits = self.head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss
lm = TinyLM().to(device)
opt = torch.optim.SGD(lm.parameters(), lr=0.1)
ids = torch.randint(0, 50257, (8, 512), device=device)
for it in range(3):
    logits, loss = lm(ids, ids)
    opt.zero_grad(); loss.backward(); opt.step()
# %% attention-einsum | 1GiB | attention|scaled_dot_product
class MHA(nn.Module):
    def __init__(self, d=256, h=8):
        super().__init__()
        self.h = h; self.qkv = nn.Linear(d, 3 * d); self.o = nn.Linear(d, d)
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        att = torch.einsum("bhid,bhjd->bhij", q, k) * (C // self.h) ** -0.5
        att = att.softmax(dim=-1)
        y = torch.einsum("bhij,bhjd->bhid", att, v)
        return self.o(y.transpose(1, 2).reshape(B, T, C))
mha = MHA().to(device)
y = mha(torch.randn(4, 2048, 256, device=device))
y.sum().backward()
# %% attention-fails-at-softmax | 700MiB | attention|scaled_dot_product
def attention(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = F.softmax(scores, dim=-1)
    return torch.matmul(p_attn, v), p_attn
q = torch.randn(4, 8, 2048, 64, device=device, requires_grad=True)
k = torch.randn(4, 8, 2048, 64, device=device)
v = torch.randn(4, 8, 2048, 64, device=device)
out, p = attention(q, k, v)
# %% pairwise-function | 2GiB | \[.*\]|cdist
def pairwise_dist(x, y):
    n, m, d = x.size(0), y.size(0), x.size(1)
    x = x.unsqueeze(1).expand(n, m, d)
    y = y.unsqueeze(0).expand(n, m, d)
    return torch.pow(x - y, 2).sum(2)
emb = torch.randn(3000, 64, device=device)
d = pairwise_dist(emb, emb)
# %% cosine-all-pairs | 2GiB | cosine|normalize|matmul|@
class ContrastiveLoss(nn.Module):
    def forward(self, z1, z2):
        sim = F.cosine_similarity(z1.unsqueeze(1), z2.unsqueeze(0), dim=2) / 0.07
        return F.cross_entropy(sim, torch.arange(len(z1), device=z1.device))
z1 = torch.randn(2048, 128, device=device, requires_grad=True)
z2 = torch.randn(2048, 128, device=device, requires_grad=True)
ContrastiveLoss()(z1, z2).backward()
# %% onehot-lookup | 2GiB | one_hot|one-hot|embedding
V = 50000
W = nn.Parameter(torch.randn(V, 64, device=device))
ids = torch.randint(0, V, (32, 256), device=device)
x = F.one_hot(ids, V).float() @ W
x.mean().backward()
# %% onehot-in-loss | 3GiB | one_hot|one-hot
def label_smoothing_loss(logits, target, eps=0.1):
    n = logits.size(-1)
    logp = F.log_softmax(logits, dim=-1)
    with torch.no_grad():
        true = torch.zeros_like(logp).scatter_(1, target.unsqueeze(1), 1)
        true = true * (1 - eps) + eps / n
    return (-true * logp).sum(-1).mean()
head = nn.Linear(64, 30000).to(device)
h = torch.randn(4096, 64, device=device)
t = torch.randint(0, 30000, (4096,), device=device)
label_smoothing_loss(head(h), t).backward()
# %% onehot-in-loss-2 | 3GiB | one_hot|one-hot
class FocalLoss(nn.Module):
    def forward(self, logits, y):
        p = logits.softmax(-1)
        onehot = F.one_hot(y, logits.size(-1)).float()
        pt = (p * onehot).sum(-1)
        return (-(1 - pt) ** 2 * pt.clamp_min(1e-9).log()).mean()
head = nn.Linear(64, 30000).to(device)
h = torch.randn(4096, 64, device=device)
t = torch.randint(0, 30000, (4096,), device=device)
FocalLoss()(head(h), t).backward()
# %% repeat-positions | 1GiB | expand|repeat
class PosEnc(nn.Module):
    def __init__(self, T, d):
        super().__init__()
        self.pe = nn.Parameter(torch.randn(1, T, d))
    def forward(self, x):
        pe = self.pe.repeat(x.size(0), 1, 1)
        return x + pe
enc = PosEnc(1024, 512).to(device)
y = enc(torch.randn(128, 1024, 512, device=device))
# %% repeat-interleave | 1GiB | repeat_interleave|expand
ctx = torch.randn(64, 512, 256, device=device)
cand = torch.randn(64 * 16, 1, 256, device=device)
big_ctx = ctx.repeat_interleave(16, dim=0)
score = (big_ctx * cand).sum(-1)
# %% tile-masks | 1GiB | tile|expand|repeat
def make_mask(T, B, H):
    m = torch.triu(torch.full((T, T), float("-inf"), device=device), 1)
    return torch.tile(m, (B, H, 1, 1))
mask = make_mask(1024, 16, 16)
scores = torch.zeros(16, 16, 1024, 1024, device=device)
# %% embedding-adam | 600MiB | embedding|sparse|SparseAdam
emb_table = nn.Embedding(500000, 64).to(device)
fc = nn.Linear(64, 1).to(device)
opt = torch.optim.Adam([*emb_table.parameters(), *fc.parameters()], lr=1e-3)
for _ in range(3):
    ids = torch.randint(0, 500000, (1024,), device=device)
    loss = fc(emb_table(ids)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% recsys-class | 900MiB | embedding|sparse|SparseAdam|Embedding
class MF(nn.Module):
    def __init__(self, users, items, k=32):
        super().__init__()
        self.u = nn.Embedding(users, k); self.i = nn.Embedding(items, k)
    def forward(self, u, i): return (self.u(u) * self.i(i)).sum(1)
class RecTrainer:
    def __init__(self, m):
        self.m = m.to(device)
        self.opt = torch.optim.Adam(self.m.parameters(), lr=0.01)
    def fit(self, steps):
        for s in range(steps):
            u = torch.randint(0, 1000000, (4096,), device=device)
            i = torch.randint(0, 500000, (4096,), device=device)
            r = torch.rand(4096, device=device)
            loss = F.mse_loss(self.m(u, i), r)
            self.opt.zero_grad(); loss.backward(); self.opt.step()
RecTrainer(MF(1000000, 500000)).fit(3)
# %% kv-cat | 60MiB | cache|past|k_cache|preallocat|kv
class CachedAttn(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.k_cache = self.v_cache = None
    @torch.no_grad()
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.k_cache = k if self.k_cache is None else torch.cat([self.k_cache, k], 1)
        self.v_cache = v if self.v_cache is None else torch.cat([self.v_cache, v], 1)
        return (q @ self.k_cache.transpose(1, 2)).softmax(-1) @ self.v_cache
att = CachedAttn().to(device)
x = torch.randn(32, 1, 512, device=device)
for t in range(600):
    x = att(x)
# %% bilinear-outer | 2GiB | \[|outer|bmm|einsum
feats = torch.randn(8192, 256, device=device)
outer = feats.unsqueeze(2) * feats.unsqueeze(1)
gram = outer.mean(0)
# %% eye-onehot | 2GiB | one_hot|one-hot|eye|embedding
V = 20000
ids = torch.randint(0, V, (16, 128), device=device)
table = torch.eye(V, device=device)
x = table[ids]
# %% double-in-forward | T4 | double|float64|no_grad
class Norm(nn.Module):
    def forward(self, x):
        x = x.double()
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
model = nn.Sequential(nn.Linear(512, 2048), Norm()).to(device)
x = torch.randn(8192, 512, device=device)
y = model(x)
print(y.float().mean().item())
# %% from-numpy-flat | T4 | float64|float32
arr = np.random.randn(30000, 512)
x = torch.from_numpy(arr).to(device)
mean, std = x.mean(0), x.std(0)
x = (x - mean) / std
w = torch.randn(512, 10, device=device, dtype=torch.float64)
print((x @ w).argmax(1).sum().item())
# %% standardize-function | T4 | float64|double
def standardize(t):
    t = t.double()
    return ((t - t.mean(0)) / (t.std(0) + 1e-8)).float()
Z = standardize(torch.randn(60000, 256, device=device))
# %% teacher-no-nograd | 250MiB | no_grad
teacher = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).to(device)
student = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(device)
opt = torch.optim.Adam(student.parameters())
teacher.eval()
def distill(x, T=2.0):
    t = F.softmax(teacher(x) / T, dim=1)
    s = F.log_softmax(student(x) / T, dim=1)
    return F.kl_div(s, t.detach(), reduction="batchmean")
for _ in range(2):
    loss = distill(torch.randn(4096, 512, device=device))
    opt.zero_grad(); loss.backward(); opt.step()
# %% dqn-target | 250MiB | no_grad|detach
qnet = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 8)).to(device)
target = copy.deepcopy(qnet)
opt = torch.optim.Adam(qnet.parameters())
def learn(s, a, r, s2):
    q = qnet(s).gather(1, a)
    max_next = target(s2).max(1, keepdim=True)[0]
    loss = F.mse_loss(q, r + 0.99 * max_next)
    opt.zero_grad(); loss.backward(); opt.step()
for _ in range(2):
    learn(torch.randn(4096, 128, device=device), torch.randint(0, 8, (4096, 1), device=device),
          torch.randn(4096, 1, device=device), torch.randn(4096, 128, device=device))
# %% clip-score-all | 60MiB | image_features|feats|list
class Index:
    def __init__(self): self.image_features = []
    def add(self, f): self.image_features.append(f / f.norm(dim=-1, keepdim=True))
index = Index()
for step, (xb, _) in enumerate(loader):
    index.add(net(xb.to(device)))
# %% grads-history | 100MiB | grads
grads = []
for xb, yb in loader:
    optimizer.zero_grad()
    criterion(net(xb.to(device)), yb.to(device)).backward()
    optimizer.step()
    grads.append({n: p.grad.clone() for n, p in net.named_parameters()})
# %% attention-return-weights-list | 300MiB | attentions|weights|all_
class Layer(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.mha = nn.MultiheadAttention(d, 4, batch_first=True)
    def forward(self, x): return self.mha(x, x, x, need_weights=True)
layer = Layer().to(device)
all_attentions = []
with torch.no_grad():
    for i in range(60):
        out, w = layer(torch.randn(4, 512, 128, device=device))
        all_attentions.append(w)
# %% leak-losses-flat | 60MiB | losses
losses = []
for epoch in range(5):
    for xb, yb in loader:
        out = net(xb.to(device))
        loss = ((out - yb.to(device)) ** 2)
        losses.append(loss.mean(1))
print(len(losses))
# %% leak-total-function | 60MiB | total_loss
def test(net, loader):
    net.eval()
    total_loss, n = 0, 0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        output = net(data)
        total_loss += F.mse_loss(output, target)
        n += 1
    return total_loss / n
test(net, loader)
# %% leak-metric-tracker | 60MiB | tracker|storage
class MetricTracker:
    storage = {}
    @classmethod
    def log(cls, key, value):
        cls.storage.setdefault(key, []).append(value)
for i, (xb, yb) in enumerate(loader):
    y = net(xb.to(device))
    MetricTracker.log("y", y)
    MetricTracker.log("err", (y - yb.to(device)).detach())
# %% leak-train-hidden-function | 80MiB | hidden|detach|\bh\b|state
def train_rnn(seqs):
    rnn = nn.GRU(128, 128, batch_first=True).to(device)
    hidden = torch.zeros(1, 64, 128, device=device)
    for s in seqs:
        out, hidden = rnn(s.to(device), hidden)
        rnn.zero_grad()
        out.pow(2).mean().backward(retain_graph=True)
train_rnn([torch.randn(64, 32, 128) for _ in range(60)])
# %% leak-two-cells | 60MiB | history
# ## earlier
history = []
def step(xb, yb):
    out = net(xb.to(device))
    loss = criterion(out, yb.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    history.append((loss, out))
# ## cell
for xb, yb in loader:
    step(xb, yb)
# %% leak-tb-writer | 60MiB | scalars|writer
class Writer:
    def __init__(self, root): self.root, self.scalars = root, collections.OrderedDict()
    def add_histogram(self, tag, values, step): self.scalars[(tag, step)] = values
writer = Writer("runs")
for step, (xb, yb) in enumerate(loader):
    optimizer.zero_grad()
    act = net[:4](xb.to(device))
    loss = criterion(net[4:](act), yb.to(device))
    loss.backward()
    optimizer.step()
    writer.add_histogram("act", act, step)
# %% leak-hook-object | 60MiB | activation|store
class SaveOutput:
    def __init__(self): self.store = collections.defaultdict(list)
    def __call__(self, module, i, o): self.store[module].append(o)
save = SaveOutput()
for m in net:
    if isinstance(m, nn.Tanh): m.register_forward_hook(save)
net.eval()
for i, (xb, _) in enumerate(loader):
    with torch.no_grad():
        net(xb.to(device))
# %% leak-bank | 60MiB | bank
bank = None
for xb, yb in loader:
    z = net(xb.to(device))
    if bank is None:
        bank = z
    else:
        bank = torch.cat([bank, z], dim=0)
    loss = (z - bank.mean(0)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(retain_graph=True)
# %% leak-best-models | 120MiB | best_models|deepcopy
def train_all(n=30):
    best_models = []
    m = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(3)]).to(device)
    for e in range(n):
        x = torch.randn(32, 1024, device=device)
        loss = m(x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in m.parameters(): p -= 0.01 * p.grad; p.grad = None
        best_models.append((loss.item(), copy.deepcopy(m)))
    return best_models
bm = train_all()
# %% leak-sample-frames | 80MiB | frames|traj
@torch.no_grad()
def simulate(steps):
    traj = []
    x = torch.randn(2048, 256, device=device)
    for s in range(steps):
        x = x + 0.01 * torch.tanh(net(x))
        traj.append(x)
    return torch.stack(traj)
simulate(100)
# %% leak-create-graph-fn | 80MiB | create_graph|cycle
def fit(epochs):
    meta = []
    for epoch in range(epochs):
        for xb, yb in loader:
            task = copy.deepcopy(net)
            loss = criterion(task(xb.to(device)), yb.to(device))
            loss.backward(create_graph=True)
            meta.append(sum(p.grad.pow(2).sum() for p in task.parameters()).item())
fit(2)
# %% leak-episode-buffer | 60MiB | buffer|logp
class Agent:
    def __init__(self):
        self.pi = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 4)).to(device)
        self.opt = torch.optim.Adam(self.pi.parameters())
        self.buffer = []
    def act(self, s):
        d = torch.distributions.Categorical(logits=self.pi(s))
        a = d.sample()
        self.buffer.append((s, a, d.log_prob(a)))
        return a
    def update(self):
        loss = -torch.stack([b[2] for b in self.buffer]).mean()
        self.opt.zero_grad(); loss.backward(retain_graph=True); self.opt.step()
agent = Agent()
for ep in range(60):
    for t in range(20):
        agent.act(torch.randn(64, 64, device=device))
    if ep % 10 == 0:
        agent.update()
# %% leak-image-stack | 100MiB | images
images = []
net2 = nn.Conv2d(3, 16, 3, padding=1).to(device)
for i in range(100):
    img = torch.rand(4, 3, 128, 128)
    images.append(net2(img.to(device)))
    if len(images) % 50 == 0:
        print(len(images))
# %% leak-fit-callbacks | 60MiB | outputs\[\*\]
class LossRecorder:
    def __init__(self): self.outputs = []
    def after_pred(self, learn): self.outputs.append(learn.pred)
class Learn:
    def __init__(self, model, dl, cbs): self.model, self.dl, self.cbs = model, dl, cbs
    def __call__(self, name):
        for cb in self.cbs:
            f = getattr(cb, name, None)
            if f: f(self)
    def one_batch(self, xb, yb):
        self.pred = self.model(xb); self("after_pred")
        self.loss = criterion(self.pred, yb); self.loss.backward(); optimizer.step(); optimizer.zero_grad()
    def fit(self, n):
        for self.epoch in range(n):
            for xb, yb in self.dl: self.one_batch(xb.to(device), yb.to(device))
Learn(net, loader, [LossRecorder()]).fit(3)
