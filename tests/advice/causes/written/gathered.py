# %% resume-function | 80MiB | ^checkpoint-on-device line 4 .*line 5
# ## earlier
import tempfile
big = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
torch.save({"model": big.state_dict(), "epoch": 3}, ckpt_path)
# ## cell
big = big.to(device)
def resume(path):
    ckpt = torch.load(path, map_location=device)
    big.load_state_dict(ckpt["model"])
    return ckpt["epoch"]
resume(ckpt_path)
big(torch.randn(2048, 1024, device=device)).mean().backward()
# %% resume-method | 130MiB | ^checkpoint-on-device line 8 .*line 9
# ## earlier
import tempfile
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
def make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
torch.save({"model": make().state_dict(), "epoch": 3}, ckpt_path)
# ## cell
class Trainer:
    def __init__(self, path):
        self.model = make().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.resume(path)
    def resume(self, path):
        self.ckpt = torch.load(path, map_location="cuda")
        self.model.load_state_dict(self.ckpt["model"])
        self.epoch = self.ckpt["epoch"]
    def step(self, x):
        loss = self.model(x).pow(2).mean()
        self.optimizer.zero_grad(); loss.backward(); self.optimizer.step()
t = Trainer(ckpt_path)
for _ in range(4): t.step(torch.randn(2048, 1024, device=device))
# %% resume-method-local | 130MiB | ^checkpoint-on-device line 5 .*line 6
# ## earlier
import tempfile
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
def make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
torch.save({"state_dict": make().state_dict(), "epoch": 3}, ckpt_path)
# ## cell
class Trainer:
    def __init__(self): self.model = make().to(device)
    def resume(self, path):
        checkpoint = torch.load(path)
        self.model.load_state_dict(checkpoint["state_dict"])
        opt = torch.optim.AdamW(self.model.parameters())
        self.model(torch.randn(256, 1024, device=device)).mean().backward()
        opt.step()
        return checkpoint["epoch"]
torch.save({"state_dict": {k: v.to(device) for k, v in make().state_dict().items()}, "epoch": 1}, ckpt_path)
Trainer().resume(ckpt_path)
# %% resume-other-cell | 130MiB | ^checkpoint-on-device In\[[34]\] line \d+
# ## earlier
import tempfile
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
def make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
torch.save({"model": make().state_dict(), "epoch": 3}, ckpt_path)
model = make().to(device)
# ## earlier
def load_checkpoint(path, model):
    ckpt = torch.load(path, map_location=device)
    model.load_state_dict(ckpt["model"])
    return ckpt
# ## cell
ckpt = load_checkpoint(ckpt_path, model)
for _ in range(3):
    model(torch.randn(2048, 1024, device=device)).mean().backward()
# %% resume-oom-in-load | 80MiB | ^checkpoint-on-device line 5 .*so far
# ## earlier
import tempfile
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
def make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
torch.save({"model": make().state_dict(), "epoch": 3}, ckpt_path)
# ## cell
class Trainer:
    def __init__(self): self.model = make().to(device); self.epoch = 0
    def resume(self, path):
        checkpoint = torch.load(path, map_location=device)
        self.model.load_state_dict(checkpoint["model"])
        self.epoch = checkpoint["epoch"]
t = Trainer()
t.resume(ckpt_path)
# %% resume-oom-in-load-flat | 80MiB | ^checkpoint-on-device line 3 .*so far
# ## earlier
import tempfile
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
def make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
torch.save(make().state_dict(), ckpt_path)
# ## cell
model = make().to(device)
model.load_state_dict(torch.load(ckpt_path, map_location="cuda"))
# %% resume-comprehension | 130MiB | ^checkpoint-on-device line 3
# ## earlier
import tempfile
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
def make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
torch.save({"module." + k: v for k, v in make().state_dict().items()}, ckpt_path)
# ## cell
model = make().to(device)
state = torch.load(ckpt_path, map_location=device)
state = {k.replace("module.", ""): v for k, v in state.items()}
model.load_state_dict(state)
for _ in range(3):
    model(torch.randn(2048, 1024, device=device)).mean().backward()
# %% loads-in-loop | 130MiB | ^growth .* states\[\*\] in load_all\(\) holds
# ## earlier
import tempfile
ckpt_path = tempfile.mkdtemp() + "/ck.pt"
def make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)])
torch.save(make().state_dict(), ckpt_path)
# ## cell
def load_all(n):
    states = []
    for i in range(n):
        states.append(torch.load(ckpt_path, map_location=device))
    return states
s = load_all(20)
# %% futures-submit | 60MiB | ^growth .*5[12]\d\.\d\d KiB in each of \d+ passes.*: futures\[\*\] holds
from concurrent.futures import ThreadPoolExecutor
def work(x):
    with torch.no_grad():
        return net(x.to(device))
futures = []
with ThreadPoolExecutor(2) as pool:
    for xb, _ in loader:
        futures.append(pool.submit(work, xb))
preds = [f.result() for f in futures]
# %% futures-comprehension | 60MiB | ^growth .*512.00 KiB in each of \d+ passes.*: futures\[\*\] holds
from concurrent.futures import ThreadPoolExecutor, as_completed
@torch.no_grad()
def work(x): return net(x.to(device))
with ThreadPoolExecutor(max_workers=1) as pool:
    futures = [pool.submit(work, xb) for xb, _ in loader]
    total = 0
    for f in as_completed(futures):
        total += f.result().sum().item()
# %% futures-dict | 60MiB | ^growth .* jobs\[\*\] in run_all\(\) holds
import concurrent.futures
@torch.no_grad()
def infer(x): return net(x.to(device))
def run_all():
    jobs = {}
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as executor:
        for i, (xb, _) in enumerate(loader):
            jobs[executor.submit(infer, xb)] = i
        for job in concurrent.futures.as_completed(jobs):
            print(jobs[job], job.result().mean().item())
run_all()
# %% futures-graph | 60MiB | ^growth .*2\.\d+ MiB in each of \d+ passes.*: server\.futures\[\*\] holds .*with their autograd graphs
from concurrent.futures import ThreadPoolExecutor
def predict(x): return net(x.to(device))
class Server:
    def __init__(self):
        self.pool, self.futures = ThreadPoolExecutor(1), []
    def submit(self, x):
        self.futures.append(self.pool.submit(predict, x))
server = Server()
for xb, _ in loader: server.submit(xb)
out = [f.result().mean().item() for f in server.futures]
# %% multiprocessing-pool-results | 60MiB | ^growth .* jobs\[\*\] holds
from multiprocessing.pool import ThreadPool
@torch.no_grad()
def infer(x): return net(x.to(device))
pool = ThreadPool(2)
jobs = []
for xb, _ in loader:
    jobs.append(pool.apply_async(infer, (xb,)))
out = [j.get() for j in jobs]
# %% asyncio-tasks | 60MiB | ^growth .* tasks\[\*\] in main\(\) holds
import asyncio
async def infer(x):
    with torch.no_grad():
        return net(x.to(device))
async def main():
    tasks = []
    for xb, _ in loader:
        tasks.append(asyncio.create_task(infer(xb)))
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks)
outs = await main()
# %% pair-table-oom | 400MiB | ^enlarged-result .*embedding makes \[1024, 1024, 128\].*table for every pair
# ## earlier
table = nn.Embedding(64, 128).to(device)
# ## cell
pos = torch.arange(1024, device=device)
rel = (pos[None] - pos[:, None]).clamp(-31, 32) + 31
bias = table(rel)
out = bias.sum(-1).softmax(-1)
# %% pair-table-module-oom | 400MiB | ^enlarged-result .*embedding makes \[1024, 1024, 128\].*table for every pair
# ## earlier
class RelPos(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(129, 128)
    def forward(self, n):
        i = torch.arange(n, device=device)
        rel = (i[None, :] - i[:, None]).clamp(-64, 64) + 64
        return self.table(rel)
relpos = RelPos().to(device)
# ## cell
e = relpos(1024)
q = torch.randn(1024, 128, device=device)
scores = torch.einsum("id,ijd->ij", q, e)
# %% rpe-attention | 700MiB | ^enlarged-result .*embedding makes \[2048, 2048, 64\].*table for every pair
# ## earlier
class RPE(nn.Module):
    def __init__(self, d=64, k=32):
        super().__init__()
        self.rel_k = nn.Embedding(2 * k + 1, d); self.k = k
        self.q = nn.Linear(d, d)
    def forward(self, x):
        n = x.size(1)
        r = torch.arange(n, device=x.device)
        idx = (r[None] - r[:, None]).clamp(-self.k, self.k) + self.k
        rk = self.rel_k(idx)
        return torch.einsum("bid,ijd->bij", self.q(x), rk)
rpe = RPE().to(device)
# ## cell
x = torch.randn(2, 2048, 64, device=device)
loss = rpe(x).pow(2).mean()
loss.backward()
# %% epoch-loss-closure | 60MiB | ^growth .* log\.history\['train'\]\[\*\] holds .*\.item\(\)
def make_logger():
    history = {"train": [], "val": []}
    def log(split, value): history[split].append(value)
    log.history = history
    return log
log = make_logger()
for xb, yb in loader:
    xb, yb = xb.to(device), yb.to(device)
    optimizer.zero_grad()
    pred = net(xb)
    loss = criterion(pred, yb)
    reg = pred.abs().mean()
    (loss).backward()
    optimizer.step()
    log("train", reg)
# %% early-stopping-best-outputs | 60MiB | ^growth .* stopper\.best_preds\[\*\] holds
class EarlyStopping:
    def __init__(self, patience=5): self.patience, self.best, self.best_preds, self.bad = patience, 1e9, [], 0
    def __call__(self, loss, preds):
        if loss < self.best or True:
            self.best, self.bad = loss, 0
            self.best_preds.append(preds)
stopper = EarlyStopping()
def validate(loader):
    net.eval()
    for xb, yb in loader:
        with torch.no_grad():
            p = net(xb.to(device))
        stopper(criterion(p, yb.to(device)).item(), p)
validate(loader)
# %% exception-list | 60MiB | ^growth .* failures\[\*\] holds .*An error keeps
failures = []
def risky(x):
    out = net(x)
    if out.shape[0] > 1: raise ValueError("bad batch", out)
    return out
for i, (xb, yb) in enumerate(loader):
    try:
        risky(xb.to(device))
    except ValueError as e:
        failures.append(e)
# %% generator-held | 60MiB | ^growth .* streams\[\*\] holds .*A generator
def stream(xb):
    h = net(xb.to(device))
    for row in h:
        yield row.sum().item()
streams = []
for xb, yb in loader:
    g = stream(xb)
    next(g)
    streams.append(g)
# %% queue-simple | 60MiB | ^growth .* q\[\*\] holds
import queue
q = queue.SimpleQueue()
for xb, yb in loader:
    with torch.no_grad():
        q.put(net(xb.to(device)))
while not q.empty():
    print(q.get().mean().item())
# %% metric-collection-state | 60MiB | ^growth .* metrics\['spearman'\]\.preds\[\*\] and .*\.target\[\*\] hold
class Metric(nn.Module):
    def __init__(self):
        super().__init__(); self._defaults = {}
    def add_state(self, name, default):
        setattr(self, name, default); self._defaults[name] = default
class Spearman(Metric):
    def __init__(self):
        super().__init__(); self.add_state("preds", []); self.add_state("target", [])
    def update(self, p, t): self.preds.append(p); self.target.append(t)
class MetricCollection(nn.ModuleDict):
    def feed(self, *a):
        for m in self.values(): m.update(*a)
metrics = MetricCollection({"spearman": Spearman()})
net.eval()
with torch.no_grad():
    for xb, yb in loader:
        metrics.feed(net(xb.to(device)), yb.to(device))
# %% log-dict-trainer-state | 60MiB | ^growth .* tr\.state\.log_history\[\*\] holds
@dataclass
class TrainerState:
    step: int = 0
    log_history: list = field(default_factory=list)
class MiniTrainer:
    def __init__(self): self.state = TrainerState()
    def compute_loss(self, x, y):
        out = net(x); return F.mse_loss(out, y), {"logits": out}
    def training_step(self, x, y):
        loss, extra = self.compute_loss(x, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        self.state.log_history.append({"step": self.state.step, "loss": loss, **extra}); self.state.step += 1
tr = MiniTrainer()
for xb, yb in loader: tr.training_step(xb.to(device), yb.to(device))
# %% prioritized-replay | 60MiB | ^growth .* memory\.tree\.data\.flat\[\*\] holds
class SumTree:
    def __init__(self, n): self.data, self.p, self.i = np.zeros(n, dtype=object), np.zeros(n), 0
    def add(self, p, d): self.data[self.i] = d; self.p[self.i] = p; self.i += 1
class PER:
    def __init__(self, n): self.tree = SumTree(n)
    def push(self, *t): self.tree.add(1.0, t)
memory = PER(10000)
s = torch.randn(512, 256, device=device)
for step in range(300):
    with torch.no_grad(): a = net(s)
    s2 = torch.randn(512, 256, device=device)
    memory.push(s, a, s2)
    s = s2
# %% register-hook-weight-grads | 60MiB | ^growth .* grad_store\[\*\] holds
grad_store = collections.defaultdict(list)
for name, p in net.named_parameters():
    p.register_hook(lambda g, name=name: grad_store[name].append(g.clone()))
for xb, yb in loader:
    optimizer.zero_grad()
    criterion(net(xb.to(device)), yb.to(device)).backward()
    optimizer.step()
# %% weakless-registry | 60MiB | ^growth .* Batch\._all\[\*\] holds
class Batch:
    _all = []
    def __init__(self, x, y):
        self.x, self.y = x.to(device), y.to(device)
        Batch._all.append(self)
for xb, yb in loader:
    b = Batch(xb, yb)
    optimizer.zero_grad(); criterion(net(b.x), b.y).backward(); optimizer.step()
# %% optimizer-per-epoch-closures | 60MiB | ^growth .* closures\[\*\] holds
closures = []
for xb, yb in loader:
    xb, yb = xb.to(device), yb.to(device)
    def closure(xb=xb, yb=yb):
        loss = criterion(net(xb), yb); loss.backward(); return loss
    closures.append(closure)
for c in closures: optimizer.zero_grad(); c(); optimizer.step()
# %% pandas-rows | 60MiB | ^growth .* rows\[\*\] holds
rows = []
for i, (xb, yb) in enumerate(loader):
    out = net(xb.to(device))
    loss = criterion(out, yb.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    rows.append(types.SimpleNamespace(step=i, loss=loss.item(), pred=out, lr=optimizer.param_groups[0]["lr"]))
# %% callback-list-dispatch | 60MiB | ^growth .* cb\.preds\[\*\] in run\(\) holds
class Callback:
    def on_batch_end(self, **kw): pass
class PredictionSaver(Callback):
    def __init__(self): self.preds = {}
    def on_batch_end(self, *, step, pred, **kw): self.preds[step] = pred
class LRLogger(Callback):
    def __init__(self): self.lrs = []
    def on_batch_end(self, **kw): self.lrs.append(0.1)
class Runner:
    def __init__(self, callbacks): self.callbacks = callbacks
    def run(self, loader):
        for step, (xb, yb) in enumerate(loader):
            pred = net(xb.to(device)); loss = criterion(pred, yb.to(device))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            for cb in self.callbacks: cb.on_batch_end(step=step, pred=pred, loss=loss.item())
Runner([LRLogger(), PredictionSaver()]).run(loader)
# %% dataset-cache-getitem | 60MiB | ^growth .* ds\.cache\[\*\] holds
class CachedDataset(Dataset):
    def __init__(self, X): self.X, self.cache = X, {}
    def __len__(self): return len(self.X)
    def __getitem__(self, i):
        if i not in self.cache: self.cache[i] = self.X[i].to(device)
        return self.cache[i]
ds = CachedDataset(torch.randn(200, 512, 256))
for epoch in range(3):
    for i in range(len(ds)):
        optimizer.zero_grad(); net(ds[i]).pow(2).mean().backward(); optimizer.step()
