# %% setattr-numbered | 60MiB | ^growth .* rec\.out_\* holds
class Recorder: pass
rec = Recorder()
for i, (xb, yb) in enumerate(loader):
    with torch.no_grad():
        setattr(rec, f"out_{i}", net(xb.to(device)))
# %% globals-names | 60MiB | ^growth .* out_\* holds
for i, (xb, yb) in enumerate(loader):
    with torch.no_grad():
        globals()[f"out_{i}"] = net(xb.to(device))
# %% linked-list | 60MiB | ^growth .* tail\.prev\*\.value holds
class Node:
    def __init__(self, value, prev): self.value, self.prev = value, prev
tail = None
for xb, yb in loader:
    xb, yb = xb.to(device), yb.to(device)
    pred = net(xb)
    optimizer.zero_grad(); criterion(pred, yb).backward(); optimizer.step()
    tail = Node(pred.detach(), tail)
# %% map-list | 60MiB | ^growth .*the list that line 3 builds \(preds\)
batches = (xb.to(device) for xb, _ in loader)
preds = list(map(net, batches))
# %% nested-dict-epochs | 60MiB | ^growth .* history\[0\]\[\*\] holds
history = {}
for epoch in range(3):
    history[epoch] = {}
    for step, (xb, yb) in enumerate(loader):
        out = net(xb.to(device)); loss = criterion(out, yb.to(device))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        history[epoch][step] = out
# %% add-param-group | 60MiB | ^growth .* opt\.param_groups\[\*\] holds
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i, (xb, yb) in enumerate(loader):
    prompt = nn.Parameter(torch.zeros(512, 256, device=device))
    opt.add_param_group({"params": [prompt], "lr": 0.01})
    loss = criterion(net(xb.to(device) + prompt), yb.to(device))
    opt.zero_grad(); loss.backward(); opt.step()
# %% hooks-pile-up | 60MiB | ^growth .* acts\[\*\] holds
acts = []
def run_epoch():
    net[0].register_forward_hook(lambda m, i, o: acts.append(o.detach().clone()))
    for j, (xb, yb) in enumerate(loader):
        if j == 5: break
        optimizer.zero_grad(); criterion(net(xb.to(device)), yb.to(device)).backward(); optimizer.step()
for epoch in range(20): run_epoch()
# %% sklearn-loss-curve | 60MiB | ^growth .* self\.loss_curve_\[\*\] in fit\(\) holds .*Keep loss\.detach\(\)
class MLPRegressor:
    def __init__(self, max_iter=300): self.max_iter, self.loss_curve_ = max_iter, []
    def _loss(self, X, y):
        pred = net(X)
        return F.mse_loss(pred, y) + 1e-4 * sum(p.pow(2).sum() for p in net.parameters())
    def fit(self, X, y):
        for _ in range(self.max_iter):
            loss = self._loss(X, y)
            optimizer.zero_grad(); loss.backward(retain_graph=True); optimizer.step()
            self.loss_curve_.append(loss)
        return self
MLPRegressor().fit(X[:512].to(device), Y[:512].to(device))
# %% lru-class | 60MiB | ^growth .* cache\[\*\] holds
class LRU(collections.OrderedDict):
    def __init__(self, size=10_000): super().__init__(); self.size = size
    def put(self, k, v):
        self[k] = v
        if len(self) > self.size: self.popitem(last=False)
cache = LRU()
def features(i):
    if i not in cache:
        with torch.no_grad(): cache.put(i, net(X[i * 512:(i + 1) * 512].to(device)))
    return cache[i]
for epoch in range(2):
    for i in range(100): features(i).mean().item()
# %% pubsub | 60MiB | ^growth .* received\[\*\] holds
class Bus:
    def __init__(self): self.subs = collections.defaultdict(list)
    def on(self, name, fn): self.subs[name].append(fn)
    def emit(self, name, *a): [fn(*a) for fn in self.subs[name]]
bus, received = Bus(), []
bus.on("batch_end", received.append)
for xb, yb in loader:
    out = net(xb.to(device))
    loss = criterion(out, yb.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    bus.emit("batch_end", {"loss": loss.item(), "out": out})
# %% cat-in-dict | 100MiB | ^growth .* bank\[\*\] holds .*join
bank = {"feats": torch.zeros(0, 256, device=device), "n": 0}
with torch.no_grad():
    for xb, _ in loader:
        bank["feats"] = torch.cat([bank["feats"], net(xb.to(device))])
        bank["n"] += len(xb)
# %% beam | 60MiB | ^growth .* done\[\*\] in beam_search\(\) holds
def beam_search(h, steps=200, k=4):
    beams, done = [(0.0, h)], []
    for t in range(steps):
        cand = []
        for score, state in beams[:k]:
            with torch.no_grad(): nxt = torch.tanh(net(state))
            cand.append((score + t, nxt))
        done += cand
        beams = cand
    return done
beam_search(X[:512].to(device))
# %% latents-history | 60MiB | ^growth .* intermediates\[\*\] holds
class Pipe:
    def __init__(self, unet): self.unet = unet
    @torch.no_grad()
    def __call__(self, n, callback=None):
        z = torch.randn(512, 256, device=device)
        for t in range(n):
            z = z - 0.01 * self.unet(z)
            if callback: callback(t, z)
        return z
intermediates = {}
Pipe(net)(300, callback=lambda t, z: intermediates.__setitem__(t, z))
# %% covariance-graph | 60MiB | ^growth .* mean holds .*mean\.detach
cov = torch.zeros(256, 256, device=device); mean = torch.zeros(256, device=device)
for i, (xb, _) in enumerate(loader):
    f = net(xb.to(device))
    mean = mean + f.mean(0)
    cov = cov + f.t() @ f / len(f)
# %% temporal-consistency | 60MiB | ^growth .* prev holds .*prev\.detach
prev = None
for xb, yb in loader:
    out = net(xb.to(device))
    loss = criterion(out, yb.to(device))
    if prev is not None: loss = loss + 0.1 * F.mse_loss(out, prev)
    optimizer.zero_grad(); loss.backward(retain_graph=True)
    prev = 0.5 * out + 0.5 * prev if prev is not None else out
# %% ppo-buffer-object | 60MiB | ^growth .* agent\.buffer\.values\[\*\] holds .* backward\(\) in update\(\)
class Buffer:
    def __init__(self): self.obs, self.values, self.logps = [], [], []
    def store(self, o, v, l): self.obs.append(o); self.values.append(v); self.logps.append(l)
class Agent:
    def __init__(self):
        self.pi, self.v = nn.Linear(64, 8).to(device), nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).to(device)
        self.buffer = Buffer()
        self.opt = torch.optim.Adam([*self.pi.parameters(), *self.v.parameters()])
    def step(self, o):
        d = torch.distributions.Categorical(logits=self.pi(o)); a = d.sample()
        self.buffer.store(o, self.v(o), d.log_prob(a)); return a
    def update(self):
        values, logps = torch.stack(self.buffer.values), torch.stack(self.buffer.logps)
        adv = (1.0 - values.squeeze(-1)).detach()
        loss = -(logps * adv).mean() + (1 - values).pow(2).mean()
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        self.buffer = Buffer()
agent = Agent()
for it in range(5):
    for t in range(1000): agent.step(torch.randn(2048, 64, device=device))
    agent.update()
# %% slots-results | 60MiB | ^growth .* results\[\*\] holds
@dataclass(slots=True)
class Result:
    idx: int
    logits: torch.Tensor
    conf: float
results: list[Result] = []
net.eval()
with torch.inference_mode():
    for i, (xb, _) in enumerate(loader):
        o = net(xb.to(device)); results.append(Result(i, o, o.max().item()))
# %% contrastive-collect-then-backward | 60MiB | ^growth .* embs\[\*\] holds .* backward\(\) \(line 7\) goes through .*in pieces
embs, labels = [], []
for xb, yb in loader:
    embs.append(F.normalize(net(xb.to(device)), dim=1)); labels.append(yb)
z = torch.cat(embs)
loss = (z @ z.t() / 0.1).logsumexp(1).mean()
optimizer.zero_grad(); loss.backward(); optimizer.step()
# %% truncated-never | 60MiB | ^growth .* h holds .* backward\(\) \(line 9\) goes through all
rnn_cell = nn.GRUCell(256, 256).to(device)
opt = torch.optim.SGD(rnn_cell.parameters(), lr=0.1)
h = torch.zeros(512, 256, device=device)
loss = 0
for t, (xb, yb) in enumerate(loader):
    h = rnn_cell(xb.to(device), h)
    loss = loss + F.mse_loss(h, yb.to(device))
opt.zero_grad(); loss.backward(); opt.step()
# %% ctx-apply-saved | 60MiB | ^growth .* kept\[\*\] holds
kept = []
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x); kept.append(x); return x * x
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors; return 2 * x * g
for xb, yb in loader:
    out = Square.apply(net(xb.to(device)))
    optimizer.zero_grad(); criterion(out, yb.to(device)).backward(); optimizer.step()
# %% architectures-compared | 250MiB | ^separate-models model_a holds .* Write del model_a below line 13
class Net(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(24)])
    def forward(self, x):
        return self.body(x)
def evaluate(model):
    with torch.no_grad():
        return model(torch.randn(64, 1024, device="cuda")).mean().item()
results = {}
model_a = Net().cuda()
results["a"] = evaluate(model_a)
model_b = Net().cuda()
results["b"] = evaluate(model_b)
model_c = Net().cuda()
results["c"] = evaluate(model_c)
print(results, sum(p.numel() for p in model_b.parameters()))
# %% models-in-a-tuple | 250MiB | ^separate-models 2 models are on the device together, 192.* baseline and wider
def build(depth):
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(depth)]).to(device)
baseline = build(24)
wider = build(24)
deeper = build(24)
for m in (baseline, wider, deeper):
    print(m(torch.randn(64, 1024, device=device)).mean().item())
# %% features-then-head | 200MiB | ^separate-models encoder holds .* Write del encoder below line 4
encoder = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(24)]).cuda()
with torch.no_grad():
    features = encoder(torch.randn(512, 1024, device="cuda"))
head = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1000)).cuda()
opt = torch.optim.Adam(head.parameters())
labels = torch.randint(0, 1000, (512,), device="cuda")
for epoch in range(3):
    loss = F.cross_entropy(head(features), labels)
    opt.zero_grad(); loss.backward(); opt.step()
# %% one-model-after-another | 280MiB | ^separate-models baseline and opt_b hold .* Write del baseline, opt_b below line
def make(): return nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]).cuda()
baseline = make()
opt_b = torch.optim.Adam(baseline.parameters())
for _ in range(2):
    opt_b.zero_grad(); baseline(torch.randn(64, 1024, device="cuda")).pow(2).mean().backward(); opt_b.step()
wide = make()
opt_w = torch.optim.Adam(wide.parameters())
for _ in range(2):
    opt_w.zero_grad(); wide(torch.randn(64, 1024, device="cuda")).pow(2).mean().backward(); opt_w.step()
# %% momentum-in-the-first-step | 110MiB | ^optimizer-state .* first step\(\).* one number
big = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]).cuda()
opt = torch.optim.SGD(big.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    opt.zero_grad()
    big(torch.randn(64, 1024, device="cuda")).pow(2).mean().backward()
    opt.step()
# %% generator-and-critic | 110MiB | .
G = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).cuda()
D = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).cuda()
og, od = torch.optim.SGD(G.parameters(), lr=1e-3), torch.optim.SGD(D.parameters(), lr=1e-3)
for _ in range(2):
    fake = G(torch.randn(64, 1024, device="cuda"))
    D(fake).mean().backward()
    og.step(); od.step()
# %% models-behind-other-names | 250MiB | .
def build(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)]).cuda()
models = []
a = build(); models.append(a)
b = build(); models.append(b)
c = build(); models.append(c)
print([m(torch.randn(64, 1024, device="cuda")).mean().item() for m in models])
# %% models-in-a-magic | 250MiB | .
def build(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)]).cuda()
a = build()
b = build()
x = torch.randn(20480, 1024, device="cuda")
%timeit -n1 -r1 a(x); b(x)
# %% models-tested-on-one-line | 250MiB | ^separate-models a holds .* del a below line 6
def build(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)]).cuda()
def test(model):
    with torch.no_grad(): return model(torch.randn(64, 1024, device="cuda")).mean().item()
accs = {}
a = build(); accs["a"] = test(a)
b = build(); accs["b"] = test(b)
c = build(); accs["c"] = test(c)
# %% a-counter-beside-a-state | 500MiB | ^growth .* s\.h holds .* made in line 8
class Memory(nn.Module):
    def __init__(s): super().__init__(); s.cell = nn.GRUCell(512, 512); s.h = None
    def forward(s, x): s.h = s.cell(x, s.h); return s.h
memory = Memory().cuda()
i = 0
while i < 600:
    o = memory(torch.randn(512, 512, device="cuda")); i += 1
