# %% out-cache-notebook | 330MiB | earlier|Out|_\d|\b_\b
# ## earlier
with torch.no_grad():
    big = net(torch.randn(60000, 256, device=device))
big
# ## cell
del big
with torch.no_grad():
    again = net(torch.randn(60000, 256, device=device))
# %% replay-buffer-list | 60MiB | buffer|storage|transitions
class ReplayBuffer:
    def __init__(self, size):
        self.size, self.storage, self.pos = size, [], 0
    def add(self, s, a, r, s2, done):
        data = (s, a, r, s2, done)
        if len(self.storage) < self.size:
            self.storage.append(data)
        else:
            self.storage[self.pos] = data
        self.pos = (self.pos + 1) % self.size
class Env:
    def reset(self): return torch.randn(64, 256)
    def step(self, a): return torch.randn(64, 256), torch.rand(64), False
env, buf = Env(), ReplayBuffer(50_000)
obs = env.reset().to(device)
for t in range(2000):
    with torch.no_grad():
        action = net(obs)
    nxt, rew, done = env.step(action)
    nxt = nxt.to(device)
    buf.add(obs, action, rew.to(device), nxt, done)
    obs = nxt
# %% metrics-class-attribute | 60MiB | preds|Metric
class Metric:
    preds = []
    targets = []
    @classmethod
    def update(cls, p, t):
        cls.preds.append(p); cls.targets.append(t)
    @classmethod
    def compute(cls):
        return (torch.cat(cls.preds) - torch.cat(cls.targets)).abs().mean()
net.eval()
for xb, yb in loader:
    xb, yb = xb.to(device), yb.to(device)
    with torch.no_grad():
        Metric.update(net(xb), yb)
print(Metric.compute().item())
# %% vae-kl-history | 36MiB | kl|history|losses
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(256, 256); self.mu = nn.Linear(256, 64); self.lv = nn.Linear(256, 64); self.dec = nn.Linear(64, 256)
    def forward(self, x):
        h = torch.relu(self.enc(x)); mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(z), mu, lv
vae = VAE().to(device)
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
kl_history, recon_history = [], []
def train_vae(epochs):
    for epoch in range(epochs):
        for xb, _ in loader:
            xb = xb.to(device)
            out, mu, lv = vae(xb)
            recon = F.mse_loss(out, xb)
            kl = -0.5 * (1 + lv - mu.pow(2) - lv.exp())
            loss = recon + kl.sum(1).mean()
            opt.zero_grad(); loss.backward(); opt.step()
            kl_history.append(kl)
            recon_history.append(recon.item())
train_vae(20)
# %% vae-sample-grid | T4 | no_grad
class Dec(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.ConvTranspose2d(64, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 3, 3, padding=1))
    def forward(self, z): return self.net(z).sigmoid()
dec = Dec().to(device)
def latent_walk(dec, steps=64):
    dec.eval()
    a, b = torch.randn(64, 16, 16, device=device), torch.randn(64, 16, 16, device=device)
    zs = torch.stack([a + (b - a) * i / steps for i in range(steps)])
    return dec(zs).cpu().detach().numpy()
grid = latent_walk(dec)
# %% gan-fake-in-function | 110MiB | detach|fake
G = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.LeakyReLU())]).to(device)
D = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(), nn.Linear(256, 1)).to(device)
optG = torch.optim.Adam(G.parameters()); optD = torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
def d_step(real):
    z = torch.randn(8192, 256, device=device)
    fake = G(z)
    optD.zero_grad()
    lr_ = bce(D(real), torch.ones(len(real), 1, device=device))
    lf = bce(D(fake), torch.zeros(len(fake), 1, device=device))
    (lr_ + lf).backward()
    optD.step()
    return (lr_ + lf).item()
for xb, _ in loader:
    d_step(xb.to(device))
# %% gan-samples-log | 60MiB | samples|images|grid|img_list
G = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4096)).to(device)
fixed_noise = torch.randn(64, 64, device=device)
img_list = []
for it in range(200):
    if it % 2 == 0:
        with torch.no_grad():
            fake = G(fixed_noise).detach()
        img_list.append(fake)
# %% detection-targets-on-gpu | 90MiB | results|outputs|predictions|coco
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 32, 3, padding=1)
        self.head = nn.Conv2d(32, 1, 1)
    def forward(self, images, targets=None):
        feats = [self.backbone(i[None]) for i in images]
        masks = [self.head(f)[0] for f in feats]
        return [{"boxes": torch.rand(100, 4, device=device), "scores": torch.rand(100, device=device), "masks": m.repeat(8, 1, 1)} for m in masks]
detector = Detector().to(device).eval()
@torch.no_grad()
def evaluate(model, n):
    results = {}
    for image_id in range(n):
        images = [torch.randn(3, 256, 256, device=device)]
        outputs = model(images)
        results.update({image_id: output for output in outputs})
    return results
res = evaluate(detector, 80)
# %% detection-loss-dict-sum | 70MiB | losses|meters|total|history|log
class Head(nn.Module):
    def __init__(self): super().__init__(); self.c = nn.Linear(256, 91); self.b = nn.Linear(256, 364)
    def forward(self, x, y): 
        f = net(x)
        return {"loss_classifier": self.c(f).pow(2).mean(), "loss_box_reg": self.b(f).abs().mean()}
head = Head().to(device)
opt = torch.optim.SGD(head.parameters(), lr=0.01)
meters = collections.defaultdict(float)
def one_epoch():
    for xb, yb in loader:
        loss_dict = head(xb.to(device), yb)
        losses = sum(loss_dict.values())
        opt.zero_grad(); losses.backward(retain_graph=True); opt.step()
        for k, v in loss_dict.items():
            meters[k] += v
one_epoch()
# %% gnn-full-embeddings | 120MiB | no_grad
N, E = 20000, 60000
edges = torch.randint(0, N, (2, E), device=device)
feats = torch.randn(N, 128, device=device)
class GCN(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.ModuleList(nn.Linear(128, 128) for _ in range(6))
    def forward(self, x):
        for l in self.l:
            m = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
            x = torch.relu(l(m))
        return x
gcn = GCN().to(device)
def test():
    gcn.eval()
    emb = gcn(feats)
    return emb.argmax(1).float().mean().item()
print(test())
# %% gnn-dense-adjacency | 5GiB | \[|sparse|adj
def normalize(adj):
    adj = adj + torch.eye(adj.size(0), device=adj.device)
    d = adj.sum(1).rsqrt()
    return d[:, None] * adj * d[None, :]
def build(n=20000):
    adj = torch.zeros(n, n, device=device)
    i = torch.randint(0, n, (2, 100000), device=device)
    adj[i[0], i[1]] = 1
    return normalize(adj)
A = build()
# %% embedding-table-adam-class | 900MiB | embedding|sparse|Embedding
class TwoTower(nn.Module):
    def __init__(self, users, items, d=64):
        super().__init__()
        self.u, self.i = nn.Embedding(users, d), nn.Embedding(items, d)
    def forward(self, u, i): return (self.u(u) * self.i(i)).sum(-1)
model = TwoTower(800_000, 200_000).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    u = torch.randint(0, 800_000, (4096,), device=device); i = torch.randint(0, 200_000, (4096,), device=device)
    loss = F.binary_cross_entropy_with_logits(model(u, i), torch.ones(4096, device=device))
    opt.zero_grad(); loss.backward(); opt.step()
# %% text-encoder-cache | 70MiB | _CACHE
_CACHE = {}
def encode(text):
    if text not in _CACHE:
        ids = torch.randint(0, 256, (64, 256), device=device).float()
        with torch.no_grad():
            _CACHE[text] = net(ids)
    return _CACHE[text]
for n in range(1200):
    e = encode(f"sentence {n}")
# %% hook-every-layer-class | 60MiB | acts|activations|store
class Recorder:
    def __init__(self, model):
        self.activations = collections.defaultdict(list)
        self.handles = [m.register_forward_hook(functools.partial(self._save, name)) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    def _save(self, name, module, inp, out):
        self.activations[name].append(out.detach())
rec = Recorder(net)
for xb, yb in loader:
    out = net(xb.to(device))
    loss = criterion(out, yb.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% backward-hook-grads | 60MiB | grad
grad_log = []
def log_grad(module, gin, gout):
    grad_log.append([g.clone() for g in gout if g is not None])
for m in net:
    m.register_full_backward_hook(log_grad)
for epoch in range(2):
    for xb, yb in loader:
        optimizer.zero_grad()
        criterion(net(xb.to(device)), yb.to(device)).backward()
        optimizer.step()
# %% global-list-in-function | 60MiB | ALL_LOSSES
ALL_LOSSES = []
def compute(xb, yb):
    per = (net(xb) - yb) ** 2
    ALL_LOSSES.append(per)
    return per.mean()
def fit(n):
    for e in range(n):
        for xb, yb in loader:
            l = compute(xb.to(device), yb.to(device))
            optimizer.zero_grad(set_to_none=True)
            l.backward()
            optimizer.step()
fit(3)
# %% exceptions-collected | 60MiB | errors|failed|exception
failed = []
def process(xb):
    h = net(xb)
    if h.shape[0] != 511:
        raise RuntimeError("bad batch")
    return h
for k, (xb, _) in enumerate(loader):
    try:
        process(xb.to(device))
    except RuntimeError as error:
        failed.append((k, error))
# %% generator-frames | 60MiB | clips
def frames(model, n):
    x = torch.randn(64, 256, device=device)
    for _ in range(n):
        with torch.no_grad():
            x = model(x)
        yield x
clips = [f for f in frames(net, 3000)]
# %% partial-callback | 60MiB | logs|store|sink
def on_step(sink, step, out):
    sink[step] = out
store = {}
callbacks = [functools.partial(on_step, store)]
for step, (xb, yb) in enumerate(loader):
    out = net(xb.to(device))
    loss = criterion(out, yb.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    for cb in callbacks:
        cb(step, out)
# %% collate-on-device-list | 60MiB | batches
def collate(items):
    x, y = zip(*items)
    return torch.stack(x).to(device), torch.stack(y).to(device)
batches = list(DataLoader(TensorDataset(X, Y), batch_size=512, collate_fn=collate))
for epoch in range(2):
    for xb, yb in batches:
        loss = criterion(net(xb), yb)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% dataset-preload-items | 60MiB | host|Dataset|samples|items
class Preloaded(Dataset):
    def __init__(self, X, Y):
        self.items = []
        for x, y in zip(X.split(64), Y.split(64)):
            self.items.append((x.cuda(), y.cuda()))
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
ds = Preloaded(X, Y)
for xb, yb in DataLoader(ds, batch_size=None):
    loss = criterion(net(xb), yb)
# %% float64-labels | T4 | float64|double
import numpy as np
features = np.random.rand(40_000, 64)
target = np.random.rand(40_000, 1)
class Tab(Dataset):
    def __init__(self): self.x = torch.tensor(features); self.y = torch.tensor(target)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i], self.y[i]
mlp = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1)).double().to(device)
opt = torch.optim.Adam(mlp.parameters())
for n, (xb, yb) in enumerate(DataLoader(Tab(), batch_size=4_000)):
    loss = F.mse_loss(mlp(xb.to(device)), yb.to(device))
    opt.zero_grad(); loss.backward(); opt.step()
    if n == 3: break
# %% onehot-tokens-scatter | 3GiB | one.hot|scatter|index|embedding
def to_onehot(ids, vocab):
    out = torch.zeros(*ids.shape, vocab, device=ids.device)
    return out.scatter_(2, ids.unsqueeze(2), 1.0)
ids = torch.randint(0, 30000, (32, 512), device=device)
proj = nn.Linear(30000, 256).to(device)
h = proj(to_onehot(ids, 30000))
# %% attention-in-module | 3GiB | attention|scaled_dot_product
class SelfAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__(); self.h = heads; self.qkv = nn.Linear(d, 3 * d); self.o = nn.Linear(d, d)
    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(d // self.h)
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        p = F.dropout(s.softmax(-1), 0.1)
        return self.o(torch.einsum("bhij,bhjd->bhid", p, v).transpose(1, 2).reshape(b, n, d))
blocks = nn.Sequential(*[SelfAttention(256, 8) for _ in range(2)]).to(device)
y = blocks(torch.randn(4, 2048, 256, device=device))
y.mean().backward()
# %% lm-logits-trainer | 3GiB | logits|vocab|last layer|\[.*50257|chunk
class LM(nn.Module):
    def __init__(self, v=50257, d=256):
        super().__init__(); self.e = nn.Embedding(v, d); self.b = nn.GRU(d, d, batch_first=True); self.head = nn.Linear(d, v)
    def forward(self, ids, labels=None):
        logits = self.head(self.b(self.e(ids))[0])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1))
        return {"loss": loss, "logits": logits}
class Trainer:
    def __init__(self, model): self.model = model; self.opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    def training_step(self, ids):
        out = self.model(ids, labels=ids)
        out["loss"].backward(); self.opt.step(); self.opt.zero_grad()
        return out["loss"].detach()
    def train(self):
        for _ in range(3): self.training_step(torch.randint(0, 50257, (8, 1024), device=device))
Trainer(LM().to(device)).train()
# %% lightning-validation-outputs | 60MiB | outputs|validation_step
class Module(nn.Module):
    def __init__(self): super().__init__(); self.net = net; self.validation_step_outputs = []
    def validation_step(self, batch, idx):
        x, y = batch
        y_hat = self.net(x.to(device))
        loss = F.mse_loss(y_hat, y.to(device))
        self.validation_step_outputs.append({"val_loss": loss, "y_hat": y_hat, "y": y})
        return loss
    def on_validation_epoch_end(self):
        avg = torch.stack([o["val_loss"] for o in self.validation_step_outputs]).mean()
class MiniTrainer:
    def validate(self, module, loader):
        module.eval()
        with torch.no_grad():
            for i, b in enumerate(loader): module.validation_step(b, i)
        module.on_validation_epoch_end()
MiniTrainer().validate(Module(), loader)
# %% hf-eval-nested-concat | 70MiB | preds|logits|container|all_
def nested_concat(a, b): return b if a is None else torch.cat((a, b), dim=0)
def evaluation_loop(model, loader):
    all_preds = all_labels = None
    model.eval()
    for xb, yb in loader:
        with torch.no_grad():
            logits = model(xb.to(device))
        all_preds = nested_concat(all_preds, logits)
        all_labels = nested_concat(all_labels, yb.to(device))
    return all_preds.cpu(), all_labels.cpu()
p, l = evaluation_loop(net, loader)
# %% rnn-state-across-batches | 70MiB | hidden|state|detach|\bh\b
lstm = nn.LSTM(256, 128, 2, batch_first=True).to(device)
def run_epoch(lstm, n):
    state = None
    total = 0
    for _ in range(n):
        x = torch.randn(32, 40, 256, device=device)
        out, state = lstm(x, state)
        total += out.pow(2).mean().item()
    return total / n
run_epoch(lstm, 50)
# %% ppo-values-list | 70MiB | values|log_probs|rollout|memory
class Memory:
    def __init__(self): self.states, self.log_probs, self.values = [], [], []
    def clear(self): del self.states[:], self.log_probs[:], self.values[:]
class Agent:
    def __init__(self):
        self.actor, self.critic = nn.Linear(256, 16).to(device), nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 1)).to(device)
        self.memory = Memory()
    def act(self, s):
        dist = torch.distributions.Categorical(logits=self.actor(s))
        a = dist.sample()
        self.memory.states.append(s)
        self.memory.log_probs.append(dist.log_prob(a))
        self.memory.values.append(self.critic(s))
        return a
agent = Agent()
for t in range(500):
    agent.act(torch.randn(128, 256, device=device))
# %% distillation-teacher-class | 230MiB | no_grad|teacher
class Distiller:
    def __init__(self):
        self.teacher = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(512, 512), nn.ReLU())]).to(device)
        self.student = nn.Linear(512, 512).to(device)
        self.opt = torch.optim.SGD(self.student.parameters(), lr=0.1)
    def step(self, x):
        t = self.teacher(x); s = self.student(x)
        loss = F.kl_div(F.log_softmax(s, 1), F.softmax(t, 1), reduction="batchmean")
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        return loss.item()
d = Distiller()
for _ in range(2): d.step(torch.randn(9000, 512, device=device))
# %% best-state-in-dict | 150MiB | best|deepcopy|state
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to(device)
opt = torch.optim.SGD(big.parameters(), lr=1e-3)
runs = {}
def train_one(seed):
    torch.manual_seed(seed)
    best = {"loss": 1e9, "state": None}
    for epoch in range(3):
        x = torch.randn(64, 1024, device=device)
        loss = big(x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if loss.item() < best["loss"]:
            best = {"loss": loss.item(), "state": copy.deepcopy(big.state_dict())}
    return best
for seed in range(10):
    runs[seed] = train_one(seed)
# %% whole-validation-at-once | 220MiB | no_grad|batch|whole|pieces
class Classifier:
    def __init__(self): self.model = net
    def fit(self, n=2):
        for xb, yb in list(loader)[:n]:
            loss = criterion(self.model(xb.to(device)), yb.to(device))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    def score(self, X, Y):
        self.model.eval()
        pred = self.model(X.to(device))
        return ((pred.cpu() - Y) ** 2).mean().item()
clf = Classifier(); clf.fit(); clf.score(X, Y)
# %% pairwise-distance-class | 3GiB | cdist|pieces|\[.*\]
class KNN:
    def fit(self, X): self.X = X; return self
    def predict(self, Q, k=5):
        d = ((Q[:, None, :] - self.X[None, :, :]) ** 2).sum(-1)
        return d.topk(k, largest=False).indices
knn = KNN().fit(torch.randn(10000, 64, device=device))
idx = knn.predict(torch.randn(2000, 64, device=device))
# %% meshgrid-repeat | 1500MiB | expand|repeat
class Decoder(nn.Module):
    def __init__(self): super().__init__(); self.f = nn.Linear(66, 32)
    def forward(self, z, side=128):
        g = torch.stack(torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij"), -1).to(z.device)
        zz = z[:, None, None, :].repeat(1, side, side, 1)
        gg = g[None].repeat(z.size(0), 1, 1, 1)
        return self.f(torch.cat([gg, zz], -1))
dec = Decoder().to(device)
img = dec(torch.randn(128, 64, device=device))
# %% kv-cache-class | 60MiB | cache|keys|kv|past
class Cache:
    def __init__(self): self.k = [None] * 4; self.v = [None] * 4
    def update(self, layer, k, v):
        self.k[layer] = k if self.k[layer] is None else torch.cat([self.k[layer], k], 2)
        self.v[layer] = v if self.v[layer] is None else torch.cat([self.v[layer], v], 2)
        return self.k[layer], self.v[layer]
cache = Cache()
with torch.inference_mode():
    tok = torch.randn(16, 8, 1, 64, device=device)
    for pos in range(400):
        for layer in range(4):
            k, v = cache.update(layer, tok, tok)
            tok = F.scaled_dot_product_attention(tok, k, v)
# %% exception-keeps-frame | 330MiB | exception|traceback|error|earlier|sys
# ## earlier
def attempt(n):
    x = torch.randn(n, 256, device=device)
    with torch.no_grad():
        h = net(x)
    raise ValueError("shape mismatch")
try:
    attempt(100000)
except ValueError as e:
    err = e
# ## cell
with torch.no_grad():
    y = net(torch.randn(80000, 256, device=device))
