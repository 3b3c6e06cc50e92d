# %% oom-loss-dict-meter | 48MiB | meters|losses|detach|item|graph
class Meters:
    def __init__(self): self.values = {"train": [], "val": []}
    def update(self, split, loss): self.values[split].append(loss)
meters = Meters()
def run_epoch(split):
    for xb, yb in loader:
        out = net(xb.to(device))
        per_item = (out - yb.to(device)).pow(2)
        if split == "train":
            optimizer.zero_grad(); per_item.mean().backward(); optimizer.step()
        meters.update(split, per_item)
run_epoch("train")
# %% oom-sum-of-losses-dict | 40MiB | total|loss_\w+|logs|item|detach
def evaluate(model, loader):
    model.eval()
    total = {"mse": 0.0, "mae": 0.0}
    for xb, yb in loader:
        pred = model(xb.to(device)); yb = yb.to(device)
        parts = {"mse": F.mse_loss(pred, yb), "mae": F.l1_loss(pred, yb)}
        for key in parts: total[key] += parts[key]
    return {k: v / len(loader) for k, v in total.items()}
evaluate(net, loader)
# %% oom-predict-callback | 50MiB | predictions|info|\.cpu
class PredictCallback:
    def __init__(self): self.predictions, self.info = [], collections.defaultdict(list)
    def on_batch_end(self, outputs, batch):
        self.predictions.append(outputs)
        self.info["x"].append(batch[0])
cb = PredictCallback()
net.eval()
with torch.inference_mode():
    for batch in loader:
        batch = [t.to(device) for t in batch]
        cb.on_batch_end(net(batch[0]), batch)
# %% oom-episode-runner | 40MiB | buffer|transitions|storage|actions|log_prob
class EpisodeBuffer:
    def __init__(self): self.storage = {"obs": [], "actions": [], "log_prob": []}
    def add(self, **kw):
        for k, v in kw.items(): self.storage[k].append(v)
policy = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(device)
buffer = EpisodeBuffer()
obs = torch.randn(256, 64, device=device)
for t in range(150):
    dist = torch.distributions.Normal(policy(obs), 1.0)
    act = dist.sample()
    buffer.add(obs=obs, actions=act, log_prob=dist.log_prob(act).sum(-1))
    obs = obs + 0.01 * act
# %% oom-rnn-hidden-attribute | 56MiB | hidden|state|detach|no_grad
class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRUCell(256, 256); self.out = nn.Linear(256, 256)
        self.h = None
    def forward(self, x):
        self.h = self.rnn(x, self.h)
        return self.out(self.h)
cm = CharModel().to(device)
with progress(loader) as bar:
    for xb, yb in bar:
        pred = cm(xb.to(device))
        bar.set_postfix(loss=criterion(pred, yb.to(device)).item())
# %% oom-psnr-cache | 40MiB | sr_images|results|val_images|no_grad
def validate(netG):
    results = {"psnr": 0.0, "sr_images": []}
    for lr_img, hr_img in loader:
        sr = netG(lr_img.to(device))
        results["psnr"] += -10 * math.log10(F.mse_loss(sr, hr_img.to(device)).item())
        results["sr_images"].extend([sr[0], sr])
    return results
validate(net)
# %% oom-hooks-on-every-layer | 60MiB | activation|store|hook
store = collections.defaultdict(list)
def get_hook(name):
    def hook(mod, inp, out): store[name].append(out.detach())
    return hook
for name, mod in net.named_modules():
    if isinstance(mod, nn.Linear): mod.register_forward_hook(get_hook(name))
for epoch in range(2):
    for xb, yb in loader:
        optimizer.zero_grad(); criterion(net(xb.to(device)), yb.to(device)).backward(); optimizer.step()
# %% oom-kfold-models | 130MiB | models|fold
class KFoldTrainer:
    def __init__(self, k): self.k, self.models = k, []
    def build(self): return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).to(device)
    def fit(self):
        for fold in range(self.k):
            model = self.build(); opt = torch.optim.Adam(model.parameters())
            for _ in range(3):
                opt.zero_grad(); model(torch.randn(32, 1024, device=device)).pow(2).mean().backward(); opt.step()
            self.models.append(model)
KFoldTrainer(10).fit()
# %% oom-optimizer-history | 150MiB | checkpoints|history|state_dict|snap
checkpoints = []
m = nn.Sequential(*[nn.Linear(768, 768) for _ in range(4)]).to(device)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for epoch in range(20):
    opt.zero_grad(); m(torch.randn(32, 768, device=device)).pow(2).mean().backward(); opt.step()
    checkpoints.append({"epoch": epoch, "model": copy.deepcopy(m.state_dict())})
# %% oom-sampler-keeps-graph | 60MiB | \bx\b|no_grad|x_t|img|sample
class Diffusion:
    def __init__(self, eps): self.eps, self.T = eps, 300
    def sample(self, n):
        x = torch.randn(n, 256, device=device)
        for t in reversed(range(self.T)):
            e = self.eps(x)
            x = (x - 0.01 * e) / 0.999
            if t > 0: x = x + 0.01 * torch.randn_like(x)
        return x
Diffusion(net).sample(256)
# %% oom-lightning-epoch-end | 50MiB | training_step_outputs|outputs
class Lit(nn.Module):
    def __init__(self):
        super().__init__(); self.backbone = net; self.training_step_outputs = []
    def training_step(self, batch, batch_idx):
        x, y = batch
        pred = self.backbone(x); loss = F.mse_loss(pred, y)
        self.training_step_outputs.append({"loss": loss.detach(), "preds": pred, "target": y})
        return loss
    def on_train_epoch_end(self):
        torch.cat([o["preds"] for o in self.training_step_outputs]); self.training_step_outputs.clear()
class MiniTrainer:
    def fit(self, lit, loader):
        for i, batch in enumerate(loader):
            loss = lit.training_step([b.to(device) for b in batch], i)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        lit.on_train_epoch_end()
MiniTrainer().fit(Lit(), loader)
# %% oom-hf-eval-loop | 150MiB | logits|all_preds|preds
class Out:
    def __init__(self, loss, logits): self.loss, self.logits = loss, logits
class TinyLM(nn.Module):
    def __init__(self, V=4000, d=64):
        super().__init__(); self.emb = nn.Embedding(V, d); self.body = nn.Linear(d, d); self.lm_head = nn.Linear(d, V)
    def forward(self, input_ids, labels=None):
        logits = self.lm_head(torch.tanh(self.body(self.emb(input_ids))))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) if labels is not None else None
        return Out(loss, logits)
lm = TinyLM().to(device)
all_preds, all_labels = [], []
lm.eval()
for step in progress(range(30)):
    batch = {"input_ids": torch.randint(0, 4000, (8, 64), device=device)}
    batch["labels"] = batch["input_ids"].clone()
    with torch.no_grad():
        outputs = lm(**batch)
    all_preds.append(outputs.logits); all_labels.append(batch["labels"])
# %% oom-feature-bank-cat | 40MiB | bank|feats
def build_bank(model, loader):
    bank = None
    with torch.no_grad():
        for xb, _ in progress(loader):
            f = F.normalize(model(xb.to(device)), dim=1)
            bank = f if bank is None else torch.cat([bank, f])
    return bank.t()
build_bank(net, loader)
# %% oom-ema-target-graph | 40MiB | center|ema|running|detach
class DinoLoss(nn.Module):
    def __init__(self):
        super().__init__(); self.center = torch.zeros(1, 256, device=device)
    def forward(self, student, teacher):
        t = F.softmax((teacher - self.center) / 0.04, -1).detach()
        self.center = 0.9 * self.center + 0.1 * teacher.mean(0, keepdim=True)
        return -(t * F.log_softmax(student, -1)).sum(-1).mean()
teacher = copy.deepcopy(net)
dino = DinoLoss()
for xb, _ in loader:
    xb = xb.to(device)
    loss = dino(net(xb), teacher(xb))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% oom-two-cells-outputs | 55MiB | run\b|earlier|outs|outputs
# ## earlier
outs = []
def collect(part):
    for i, (xb, yb) in enumerate(loader):
        if i % 2 == part: outs.append(net(xb.to(device)).detach())
collect(0)
# ## cell
collect(1)
# %% tntorch-loss-history | T4 | history|\.item|detach|graph
loss_history = []
img = torch.rand(256, 256, device=device)
u = torch.randn(256, 32, device=device, requires_grad=True)
v = torch.randn(32, 256, device=device, requires_grad=True)
opt = torch.optim.Adam([u, v], lr=0.01)
for it in range(150):
    res = u @ v - img
    loss = (res * res).sum()
    loss_history.append(loss)
    loss_history.append(res)
    opt.zero_grad(); loss.backward(); opt.step()
# %% gflownet-replay | T4 | replay|buffer|pushed
class Replay:
    def __init__(self, cap): self.cap, self.data, self.pos = cap, [], 0
    def push(self, **traj):
        if len(self.data) < self.cap: self.data.append(traj)
        else: self.data[self.pos] = traj
        self.pos = (self.pos + 1) % self.cap
replay = Replay(10_000)
for it, (xb, _) in enumerate(loader):
    logits = net(xb.to(device))
    replay.push(states=xb.to(device), logits=logits, reward=logits.mean(1))
    optimizer.zero_grad(); (-logits.logsumexp(1).mean()).backward(); optimizer.step()
# %% cpo-metrics | T4 | metrics|_stored|stored
class PrefTrainer:
    def __init__(self, model): self.model, self._stored = model, {"train": collections.defaultdict(list)}
    def store_metrics(self, metrics):
        for k, v in metrics.items(): self._stored["train"][k].append(v)
    def get_batch_loss_metrics(self, x, y):
        logp = F.log_softmax(self.model(x), -1)
        nll = -(logp * F.softmax(y, -1))
        self.store_metrics({"nll": nll, "logps": logp})
        return nll.sum(-1).mean()
    def train(self):
        for xb, yb in loader:
            loss = self.get_batch_loss_metrics(xb.to(device), yb.to(device))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
PrefTrainer(net).train()
# %% fairchem-metrics | 76MiB | metrics|forces|outputs
def compute_metrics(output, batch, prev):
    for k in output: prev.setdefault(k, []).append((output[k] - batch[k]).abs())
    return prev
metrics = {}
net.eval()
with torch.no_grad():
    for i, (xb, yb) in enumerate(loader):
        out = {"forces": net(xb.to(device))}
        metrics = compute_metrics(out, {"forces": yb.to(device)}, metrics)
# %% opennmt-translate | T4 | attns|no_grad
class Translator:
    def __init__(self, model): self.model, self.attns = model, []
    def translate_batch(self, src):
        out = src
        for _ in range(3):
            out = self.model(out)
            self.attns.append(out.softmax(-1))
        return out.argmax(-1).tolist()
tr = Translator(net)
hyps = []
for i, (xb, _) in enumerate(loader):
    if i == 40: break
    hyps += tr.translate_batch(xb.to(device))
# %% output-attentions | 52MiB | att|all_
all_att = ()
q, k = nn.Linear(64, 64).to(device), nn.Linear(64, 64).to(device)
with torch.no_grad():
    for step in range(30):
        h = torch.randn(4, 256, 64, device=device)
        att = (q(h) @ k(h).transpose(1, 2)).softmax(-1)
        all_att += (att,)
# %% confusion-curve | 132MiB | batch_results
batch_results = {"step": [], "prob": []}
net.eval()
for step, (xb, yb) in enumerate(progress(loader, desc="val")):
    with torch.no_grad():
        prob = torch.sigmoid(net(xb.to(device)))
    batch_results["step"].append(step)
    batch_results["prob"].append(prob)
final = torch.vstack(batch_results["prob"]).cpu().numpy()
# %% warmup-partial | T4 | rewards|rollouts|trajs|traj
def collect_rollouts(policy, n):
    rollouts = []
    s = torch.randn(512, 256, device=device)
    for _ in range(n):
        a = policy(s)
        s = torch.tanh(s + 0.05 * a)
        rollouts.append(dict(state=s, action=a))
    return rollouts
traj = collect_rollouts(net, 60)
adv = torch.stack([r["action"].mean(1) for r in traj]).detach().cpu()
# %% pointcontrast-pdist | 3424MiB | cdist|unsqueeze|chunk|pieces
def pdist(A, B):
    D2 = torch.sum((A.unsqueeze(1) - B.unsqueeze(0)).pow(2), 2)
    return torch.sqrt(D2 + 1e-7)
def hardest_contrastive(F0, F1, thresh=1.4):
    D = pdist(F0, F1)
    return F.relu(thresh - D.min(1).values).mean()
f0 = torch.randn(3000, 32, device=device, requires_grad=True); f1 = torch.randn(2048, 32, device=device)
hardest_contrastive(f0, f1).backward()
# %% softdtw-expand | T4 | cdist|chunk|pieces|expand
class SoftDTW(nn.Module):
    def _euclidean(self, x, y):
        n, m, d = x.size(1), y.size(1), x.size(2)
        x = x.unsqueeze(2).expand(-1, n, m, d); y = y.unsqueeze(1).expand(-1, n, m, d)
        return torch.pow(x - y, 2).sum(3)
    def forward(self, x, y): return self._euclidean(x, y).mean()
SoftDTW()(torch.randn(16, 256, 32, device=device), torch.randn(16, 256, 32, device=device))
# %% rbf-kernel-matrix | T4 | cdist|pieces|chunk|unsqueeze
def mmd(x, y, sigmas=(1, 2, 4)):
    z = torch.cat([x, y])
    diff = z[:, None, :] - z[None, :, :]
    d2 = (diff ** 2).sum(-1)
    return sum(torch.exp(-d2 / s).mean() for s in sigmas)
with torch.no_grad():
    print(mmd(torch.randn(1024, 48, device=device), torch.randn(1024, 48, device=device)).item())
# %% retrieval-similarity | T4 | similar|chunk|pieces|topk|rows
gallery = torch.randn(30000, 64, device=device); queries = torch.randn(8000, 64, device=device)
def rank(queries, gallery, k=10):
    sims = F.normalize(queries, dim=1) @ F.normalize(gallery, dim=1).t()
    return sims.topk(k, dim=1).indices.cpu()
idx = rank(queries, gallery)
# %% label-smoothing-onehot | 860MiB | one.hot|cross_entropy|index
class LabelSmoothing(nn.Module):
    def __init__(self, V, eps=0.1): super().__init__(); self.V, self.eps = V, eps
    def forward(self, logits, target):
        true = torch.zeros_like(logits)
        true.fill_(self.eps / (self.V - 1))
        true.scatter_(1, target.unsqueeze(1), 1 - self.eps)
        return F.kl_div(F.log_softmax(logits, -1), true, reduction="batchmean")
logits = torch.randn(2048, 16000, device=device, requires_grad=True)
LabelSmoothing(16000)(logits, torch.randint(0, 16000, (2048,), device=device)).backward()
# %% bag-of-words-eye | 232MiB | one.hot|eye|index|Embedding
vocab = 6000
eye = torch.eye(vocab, device=device)
proj = nn.Linear(vocab, 64).to(device)
def encode(ids): return proj(eye[ids].sum(1))
encode(torch.randint(0, vocab, (64, 40), device=device)).sum().backward()
# %% hf-causal-full-logits | T4 | logits|lm_head|vocab|last layer
class CausalOut:
    def __init__(self, loss, logits): self.loss, self.logits = loss, logits
class CausalLM(nn.Module):
    def __init__(self, V=32000, d=64):
        super().__init__(); self.wte = nn.Embedding(V, d); self.h = nn.Linear(d, d); self.lm_head = nn.Linear(d, V, bias=False)
    def forward(self, input_ids, labels):
        logits = self.lm_head(F.gelu(self.h(self.wte(input_ids))))
        shift, lab = logits[:, :-1].contiguous().float(), labels[:, 1:].contiguous()
        return CausalOut(F.cross_entropy(shift.view(-1, shift.size(-1)), lab.view(-1)), logits)
model = CausalLM().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    ids = torch.randint(0, 32000, (4, 512), device=device)
    out = model(ids, labels=ids)
    out.loss.backward(); opt.step(); opt.zero_grad()
# %% gather-logprobs | T4 | log_softmax|logits|cross_entropy|vocab|last layer
def get_per_token_logps(hidden, head, ids):
    logits = head(hidden)
    logps = logits.log_softmax(-1)
    return torch.gather(logps, 2, ids.unsqueeze(2)).squeeze(2)
head = nn.Linear(64, 32000, bias=False).to(device)
h = torch.randn(4, 512, 64, device=device, requires_grad=True)
get_per_token_logps(h, head, torch.randint(0, 32000, (4, 512), device=device)).mean().backward()
# %% einsum-mha | T4 | attention|scaled_dot_product
class MHA(nn.Module):
    def __init__(self, d=128, heads=8):
        super().__init__(); self.h = heads; self.qkv = nn.Linear(d, 3 * d); self.o = nn.Linear(d, d)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).unbind(2)
        w = torch.einsum("bqhd,bkhd->bhqk", q, k) * (d // self.h) ** -0.5
        w = F.softmax(w, dim=-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", w, v).reshape(b, t, d))
layers = nn.ModuleList([MHA() for _ in range(2)]).to(device)
x = torch.randn(2, 1024, 128, device=device)
for l in layers: x = x + l(x)
x.mean().backward()
# %% causal-mask-buffer | 624MiB | attention|scaled_dot_product
def attend(q, k, v, mask):
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(mask[None, None] == 0, float("-inf"))
    att = F.softmax(att, dim=-1)
    return F.dropout(att, 0.1) @ v
q, k, v = (torch.randn(4, 8, 1024, 32, device=device, requires_grad=True) for _ in range(3))
attend(q, k, v, torch.tril(torch.ones(1024, 1024, device=device))).sum().backward()
# %% non-local-block | 712MiB | attention|scaled_dot_product
class NonLocal(nn.Module):
    def __init__(self, c):
        super().__init__(); self.theta, self.phi, self.g = (nn.Conv2d(c, c, 1) for _ in range(3))
    def forward(self, x):
        b, c, h, w = x.shape
        q = self.theta(x).view(b, c, -1).permute(0, 2, 1); k = self.phi(x).view(b, c, -1); v = self.g(x).view(b, c, -1).permute(0, 2, 1)
        p = F.softmax(torch.matmul(q, k), dim=-1)
        return x + torch.matmul(p, v).permute(0, 2, 1).reshape(b, c, h, w)
NonLocal(32).to(device)(torch.randn(4, 32, 56, 56, device=device)).mean().backward()
# %% repeat-style | T4 | expand
class Generator(nn.Module):
    def __init__(self): super().__init__(); self.mix = nn.Conv2d(64, 8, 1)
    def forward(self, z):
        style = z[:, :, None, None].repeat(1, 1, 128, 128)
        return self.mix(style).tanh()
with torch.no_grad(): Generator().to(device)(torch.randn(32, 64, device=device))
# %% graph-messages-repeat | T4 | expand|repeat
def pair_features(node):
    n = node.size(0)
    left = node.repeat_interleave(n, dim=0); right = node.repeat(n, 1)
    return (left * right).sum(1).view(n, n)
pair_features(torch.randn(1000, 128, device=device))
# %% w2v-dense-gradient | T4 | embedding|sparse
class SkipGram(nn.Module):
    def __init__(self, V, d):
        super().__init__(); self.inp = nn.Embedding(V, d); self.out = nn.Embedding(V, d)
    def forward(self, c, p, n):
        e = self.inp(c)
        return -(F.logsigmoid((e * self.out(p)).sum(-1)) + F.logsigmoid(-(e.unsqueeze(1) * self.out(n)).sum(-1)).sum(1)).mean()
sg = SkipGram(200_000, 64).to(device)
opt = torch.optim.Adam(sg.parameters())
for step in range(3):
    c, p, n = torch.randint(0, 200_000, (256,)), torch.randint(0, 200_000, (256,)), torch.randint(0, 200_000, (256, 5))
    opt.zero_grad(); sg(c.to(device), p.to(device), n.to(device)).backward(); opt.step()
# %% dataset-init-cuda | 144MiB | host|Dataset|\.cpu
class TabularDataset(Dataset):
    def __init__(self, X, Y):
        self.X = X.cuda(); self.Y = Y.cuda()
    def __len__(self): return len(self.X)
    def __getitem__(self, i): return self.X[i], self.Y[i]
dl = DataLoader(TabularDataset(X, Y), batch_size=512)
for xb, yb in dl:
    optimizer.zero_grad(); criterion(net(xb), yb).backward(); optimizer.step()
# %% numpy-dataset-double | 96MiB | float64
class Frame(Dataset):
    def __init__(self, a): self.a = a
    def __len__(self): return len(self.a)
    def __getitem__(self, i): return torch.from_numpy(self.a[i])
w = nn.Linear(4096, 256).double().to(device)
for xb in DataLoader(Frame(np.random.randn(2048, 4096)), batch_size=1024):
    loss = w(xb.to(device)).pow(2).mean()
    loss.backward()
# %% pandas-values-gp | T4 | float64
def gp_posterior(x, y, noise=1e-2):
    x, y = torch.tensor(x, device=device), torch.tensor(y, device=device)
    K = torch.exp(-0.5 * (x - x.T) ** 2) + noise * torch.eye(len(x), device=device, dtype=x.dtype)
    L = torch.linalg.cholesky(K)
    return torch.cholesky_solve(y, L)
gp_posterior(np.linspace(0, 1, 3000)[:, None], np.random.rand(3000, 1))
# %% hf-generate-cache | 76MiB | growth|cache|past|key
class CachedDecoder(nn.Module):
    def __init__(self, d=512):
        super().__init__(); self.kv = nn.Linear(d, 2 * d); self.q = nn.Linear(d, d); self.past = None
    def step(self, x):
        k, v = self.kv(x).chunk(2, -1)
        if self.past is not None:
            k, v = torch.cat([self.past[0], k], 1), torch.cat([self.past[1], v], 1)
        self.past = (k, v)
        return F.scaled_dot_product_attention(self.q(x), k, v)
dec = CachedDecoder().to(device)
x = torch.randn(32, 1, 512, device=device)
with torch.no_grad():
    for t in progress(range(200)): x = dec.step(x)
# %% gan-d-step-full-graph | 160MiB | detach|fake
G = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.LeakyReLU(0.2)) for _ in range(8)]).to(device)
D = nn.Sequential(nn.Linear(512, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
for it in range(3):
    real = torch.randn(2048, 512, device=device); z = torch.randn_like(real)
    opt_d.zero_grad()
    fake = G(z)
    d_loss = bce(D(real), torch.ones(2048, 1, device=device)) + bce(D(fake), torch.zeros(2048, 1, device=device))
    d_loss.backward(); opt_d.step()
    opt_g.zero_grad()
    bce(D(G(z)), torch.ones(2048, 1, device=device)).backward(); opt_g.step()
# %% actor-critic-target | T4 | (agent|self)\.target
class DQNAgent:
    def __init__(self):
        mk = lambda: nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)], nn.Linear(512, 4)).to(device)
        self.online, self.target = mk(), mk()
        self.target.load_state_dict(self.online.state_dict())
        self.opt = torch.optim.SGD(self.online.parameters(), lr=0.01)
    def learn(self, s, a, r, s2):
        q = self.online(s).gather(1, a)
        y = r + 0.99 * self.target(s2).max(1, keepdim=True).values
        loss = F.smooth_l1_loss(q, y)
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        return loss.item()
agent = DQNAgent()
for _ in range(3): agent.learn(torch.randn(4096, 512, device=device), torch.randint(0, 4, (4096, 1), device=device), torch.randn(4096, 1, device=device), torch.randn(4096, 512, device=device))
# %% clip-frozen-tower | T4 | no_grad|requires_grad|frozen|backbone|image
backbone = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(10)]).to(device)
classifier = nn.Linear(512, 10).to(device)
opt = torch.optim.AdamW(classifier.parameters())
for step in range(3):
    feats = backbone(torch.randn(4096, 512, device=device))
    loss = F.cross_entropy(classifier(feats), torch.randint(0, 10, (4096,), device=device))
    opt.zero_grad(); loss.backward(); opt.step()
# %% perceptual-loss-features | T4 | no_grad|target|perceptual|vgg
class Perceptual(nn.Module):
    def __init__(self):
        super().__init__(); self.vgg = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.ReLU()) for i in range(6)])
        for p in self.vgg.parameters(): p.requires_grad = False
    def forward(self, pred, target): return F.l1_loss(self.vgg(pred), self.vgg(target))
gen = nn.Conv2d(3, 3, 1).to(device)
perc = Perceptual().to(device)
val = 0.0
for i in range(3):
    img = torch.randn(8, 3, 128, 128, device=device)
    val += perc(gen(img), img).item()
# %% evaluate-with-eval-only | T4 | no_grad
@dataclass
class Args:
    batch_size: int = 8192
def test(args, model, data):
    model.eval(); correct = 0
    for i in range(0, len(data), args.batch_size):
        out = model(data[i:i + args.batch_size].to(device))
        correct += out.argmax(1).eq(0).sum().item()
    return correct / len(data)
print(test(Args(), nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(10)]).to(device), X[:32768]))
# %% embed-service | T4 | no_grad
class Embedder:
    def __init__(self):
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 3).to(device)
    def encode(self, tokens):
        h = self.enc(tokens).mean(1)
        return F.normalize(h, dim=-1).detach().cpu().numpy()
vecs = [Embedder().encode(torch.randn(64, 128, 128, device=device)) for _ in range(2)]
# %% gradient-penalty-create-graph | T4 | create_graph|del |grad|logs
def penalty(net, x):
    x = x.requires_grad_(True)
    out = net(x)
    g = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()
logs = []
for i, (xb, yb) in enumerate(loader):
    gp = penalty(net, xb.to(device))
    logs.append(gp)
# %% dead-model-of-earlier-cell | 290MiB | old_model|earlier
# ## earlier
old_model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]).to(device)
with torch.no_grad(): old_model(torch.randn(8, 2048, device=device))
# ## cell
class Bigger(nn.Module):
    def __init__(self):
        super().__init__(); self.body = nn.Sequential(*[nn.Linear(2560, 2560) for _ in range(8)])
    def forward(self, x): return self.body(x)
new_model = Bigger().to(device)
with torch.no_grad(): new_model(torch.randn(8, 2560, device=device))
# %% best-model-if | 136MiB | deepcopy|best
def fit(model, epochs=4):
    best_loss, best_model = float("inf"), None
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        x = torch.randn(16, 1024, device=device)
        loss = model(x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if loss.item() < best_loss:
            best_loss, best_model = loss.item(), copy.deepcopy(model)
    return best_model
fit(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device))
# %% full-test-set | 100MiB | batch|no_grad|at once
# ## earlier
X_test = torch.randn(40000, 256)
mlp = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
# ## cell
mlp.eval()
with torch.no_grad():
    y_pred = mlp(X_test.to(device)).argmax(1)
# %% missing-zero-grad-not-memory | T4 | logits|zero_grad|outputs
step_outputs = []
class SimpleModule(nn.Module):
    def __init__(self): super().__init__(); self.l = net
    def validation_step(self, batch, idx):
        out = self.l(batch[0].to(device))
        step_outputs.append(out)
        return {"val_loss": F.mse_loss(out, batch[1].to(device)).item()}
sm = SimpleModule().eval()
val = [sm.validation_step(b, i) for i, b in enumerate(loader)]
# %% retain-in-rnn-trainer | T4 | detach|hidden|\bh\b|state
lstm = nn.LSTM(256, 256, batch_first=True).to(device)
opt = torch.optim.SGD(lstm.parameters(), lr=0.0)
hidden = None
for i, (xb, yb) in enumerate(loader):
    out, hidden = lstm(xb.to(device).view(16, 32, 256), hidden)
    if i == 30: break
    loss_val = out.pow(2).mean().item()
# %% history-of-weights | 176MiB | trajectory|clone|weights
trajectory = []
big = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).to(device)
opt = torch.optim.SGD(big.parameters(), lr=0.1)
for step in range(30):
    opt.zero_grad(); big(torch.randn(64, 512, device=device)).pow(2).mean().backward(); opt.step()
    trajectory.append(nn.utils.parameters_to_vector(big.parameters()).detach().clone())
# %% grads-list | 144MiB | grads|norms
grads = {n: [] for n, _ in net.named_parameters()}
for xb, yb in loader:
    optimizer.zero_grad(); criterion(net(xb.to(device)), yb.to(device)).backward()
    for n, p in net.named_parameters(): grads[n].append(p.grad.clone())
    optimizer.step()
# %% maml-tasks | T4 | adapted|tasks|fast|detach
class Learner(nn.Module):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.randn(256, 256) * 0.05)
    def forward(self, x, w=None): return torch.tanh(x @ (self.w if w is None else w))
learner = Learner().to(device)
adapted = {}
for task in range(60):
    x, y = torch.randn(128, 256, device=device), torch.randn(128, 256, device=device)
    fast = learner.w
    for _ in range(3):
        g, = torch.autograd.grad(F.mse_loss(learner(x, fast), y), fast)
        fast = fast - 0.1 * g
    adapted[task] = fast
# %% nested-function-global | T4 | cache|embeds|encode
embeds = {}
def get_embedding(key, x):
    if key not in embeds: embeds[key] = net(x)
    return embeds[key]
def similarity(i, j): return float((get_embedding(i, X[i * 512:(i + 1) * 512].to(device)) * get_embedding(j, X[j * 512:(j + 1) * 512].to(device))).mean())
scores = [similarity(i, i + 1) for i in range(60)]
# %% visualise-latents | T4 | latents|zs
class VAE(nn.Module):
    def __init__(self): super().__init__(); self.e = nn.Linear(256, 256); self.d = nn.Linear(128, 256)
    def forward(self, x):
        mu, lv = self.e(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.d(z), mu, lv, z
vae = VAE().to(device); opt = torch.optim.Adam(vae.parameters())
latents = []
for epoch in range(2):
    for xb, _ in loader:
        xb = xb.to(device)
        rec, mu, lv, z = vae(xb)
        loss = F.mse_loss(rec, xb) - 0.5 * (1 + lv - mu ** 2 - lv.exp()).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        latents.append((mu, z))
# %% accelerate-gather | 132MiB | samples_seen|gathered|predictions
class Accelerator:
    def gather_for_metrics(self, xs): return xs
    def backward(self, loss): loss.backward()
accelerator = Accelerator()
gathered = {"predictions": [], "references": []}
net.eval()
for step, batch in enumerate(progress(loader)):
    x, y = (t.to(device) for t in batch)
    with torch.no_grad():
        outputs = net(x)
    p, r = accelerator.gather_for_metrics((outputs, y))
    gathered["predictions"].append(p); gathered["references"].append(r)
# %% timing-decorator-keeps-results | 132MiB | calls|results|log
def logged(fn):
    calls = []
    @functools.wraps(fn)
    def wrapper(*a, **k):
        out = fn(*a, **k)
        calls.append((a, out))
        return out
    wrapper.calls = calls
    return wrapper
@logged
def forward(x): return net(x)
net.eval()
with torch.no_grad():
    for xb, yb in loader:
        forward(xb.to(device)).argmax(1).tolist()
