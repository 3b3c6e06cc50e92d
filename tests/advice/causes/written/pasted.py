# %% second-backward-lstm-class | T4 | graph-used-twice.*rnn\.hidden
class CharRNN(nn.Module):
    def __init__(self, v=100, h=128):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(v, h), nn.LSTM(h, h, batch_first=True), nn.Linear(h, v)
        self.hidden = None
    def forward(self, x):
        y, self.hidden = self.rnn(self.emb(x), self.hidden)
        return self.out(y)
rnn = CharRNN().to(device)
opt = torch.optim.Adam(rnn.parameters(), lr=1e-3)
text = torch.randint(0, 100, (32, 641))
# ## cell
for epoch in range(2):
    for i in range(0, 640, 64):
        x, y = text[:, i:i + 64].to(device), text[:, i + 1:i + 65].to(device)
        opt.zero_grad()
        loss = F.cross_entropy(rnn(x).reshape(-1, 100), y.reshape(-1))
        loss.backward()
        opt.step()
# %% second-backward-gru-function | T4 | graph-used-twice.*: h brings
gru, dec = nn.GRU(32, 64, batch_first=True).to(device), nn.Linear(64, 1).to(device)
opt = torch.optim.Adam([*gru.parameters(), *dec.parameters()])
series = torch.randn(16, 500, 33)
# ## cell
def train_epoch(series, bptt=50):
    h = torch.zeros(1, series.size(0), 64, device=device)
    for t in range(0, series.size(1), bptt):
        chunk = series[:, t:t + bptt].to(device)
        out, h = gru(chunk[..., :32], h)
        loss = F.mse_loss(dec(out), chunk[..., 32:])
        opt.zero_grad()
        loss.backward()
        opt.step()
train_epoch(series)
# %% second-backward-two-losses | T4 | graph-used-twice.*feats.*loss_a \+ loss_b
a, b = nn.Linear(256, 10).to(device), nn.Linear(256, 1).to(device)
opt = torch.optim.Adam([*net.parameters(), *a.parameters(), *b.parameters()])
# ## cell
for x, y in loader:
    feats = net(x.to(device)).tanh()
    loss_a = a(feats).pow(2).mean()
    loss_b = b(feats).abs().mean()
    opt.zero_grad()
    loss_a.backward()
    loss_b.backward()
    opt.step()
# %% second-backward-precomputed | T4 | graph-used-twice.*emb was computed once
head = nn.Linear(256, 10).to(device)
opt = torch.optim.Adam(head.parameters(), lr=1e-3)
# ## cell
emb = net(X[:2000].to(device))          # features do not change, compute them once
for epoch in range(20):
    for idx in torch.randperm(len(emb)).split(200):
        loss = head(emb[idx]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
# %% second-backward-running-loss | T4 | graph-used-twice.*total_loss goes on
total_loss = 0
for i, (x, y) in enumerate(loader):
    loss = criterion(net(x.to(device)), y.to(device))
    total_loss += loss
    optimizer.zero_grad()
    total_loss.backward()
    optimizer.step()
# %% second-backward-memory-module | T4 | graph-used-twice.*memnet\.memory brings
class MemoryNet(nn.Module):
    def __init__(self, slots=64, d=256):
        super().__init__()
        self.register_buffer("memory", torch.zeros(slots, d))
        self.q, self.out = nn.Linear(d, d), nn.Linear(d, 10)
    def forward(self, x):
        att = (self.q(x) @ self.memory.t()).softmax(-1)
        self.memory = 0.99 * self.memory + 0.01 * att.t() @ x + 0.001 * self.q(x).mean(0)
        return self.out(x + att @ self.memory)
memnet = MemoryNet().to(device)
# ## cell
opt = torch.optim.SGD(memnet.parameters(), 0.01)
def fit():
    for xb, yb in progress(loader):
        loss = memnet(xb.to(device)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
fit()
# %% second-backward-next-cell | T4 | graph-used-twice.*graph of loss
x, y = X[:512].to(device), Y[:512].to(device)
loss = criterion(net(x), y)
loss.backward()
optimizer.step()
# ## cell
optimizer.zero_grad()
loss.backward()
optimizer.step()
# %% second-backward-weight-made-once | T4 | graph-used-twice.*cosine\.weight was computed once
class Cos(nn.Module):
    def __init__(self, d=256, k=10):
        super().__init__()
        self.raw, self.weight = nn.Parameter(torch.randn(k, d)), None
    def prepare(self):
        self.weight = F.normalize(self.raw, dim=1)
        return self
    def forward(self, x):
        return F.linear(F.normalize(x, dim=1), self.weight)
cosine = Cos().to(device).prepare()
# ## cell
opt = torch.optim.SGD(cosine.parameters(), 0.1)
for x, y in loader:
    opt.zero_grad()
    cosine(x.to(device)).pow(2).mean().backward()
    opt.step()
# %% second-backward-two-cells | T4 | graph-used-twice.*in step\(\).*state brings
state = None
enc_rnn, lin = nn.LSTM(256, 128, batch_first=True).to(device), nn.Linear(128, 10).to(device)
opt = torch.optim.Adam([*enc_rnn.parameters(), *lin.parameters()])
def step(x):
    global state
    out, state = enc_rnn(x.view(-1, 4, 256), state)
    loss = lin(out[:, -1]).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    return loss.item()
# ## cell
for x, y in loader:
    step(x.to(device))
# %% second-backward-create-graph | T4 | graph-used-twice.*create_graph=True in line 4
for x, y in loader:
    loss = criterion(net(x.to(device)), y.to(device))
    loss.backward(create_graph=True)
    gnorm = sum(p.grad.pow(2).sum() for p in net.parameters())
    (0.1 * gnorm).backward()
    optimizer.step()
# %% heapq-hardest | 45MiB | hardest\[\*\]
import heapq
hardest = []
wide = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512)).to(device)
for i, (x, y) in enumerate(loader):
    x = x.to(device)
    out = wide(x)
    loss = (out - 1).pow(2).mean()
    heapq.heappush(hardest, (-loss.item(), i, x, out))
# %% counter-of-losses | 80MiB | meter\.losses
class LossMeter:
    def __init__(self):
        self.losses, self.n = collections.Counter(), 0
    def update(self, **kw):
        self.losses.update(kw)
        self.n += 1
meter = LossMeter()
# ## cell
net.eval()
for x, y in loader:
    out = net(x.to(device))
    meter.update(mse=criterion(out, y.to(device)), size=out.abs().mean())
# %% queue-results | 45MiB | results\.queue
import queue
class Worker:
    def __init__(self, net, out_q):
        self.net, self.out_q = net, out_q
    def process(self, batch):
        with torch.inference_mode():
            y = self.net(batch.to(device))
        self.out_q.put((batch.shape[0], y))
# ## cell
results = queue.Queue()
worker = Worker(nn.Linear(256, 1024).to(device), results)
for xb, _ in progress(loader):
    worker.process(xb)
# %% log-records-kept | 45MiB | handler\.records
import logging
class KeepRecords(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
    def emit(self, record):
        self.records.append(record)
log = logging.getLogger("train"); log.setLevel(logging.INFO); log.propagate = False
handler = KeepRecords()
log.addHandler(handler)
# ## cell
encoder = nn.Linear(256, 1024).to(device)
for step, (xb, _) in enumerate(loader):
    with torch.no_grad():
        z = encoder(xb.to(device))
    log.info("step %d z=%s", step, z)
# %% study-of-trials | 60MiB | study\.trials
class Trial:
    def __init__(self, number): self.number, self.user_attrs = number, {}
    def set_user_attr(self, k, v): self.user_attrs[k] = v
class Study:
    def __init__(self): self.trials = []
    def optimize(self, objective, n_trials):
        for i in range(n_trials):
            t = Trial(i)
            t.value = objective(t)
            self.trials.append(t)
# ## cell
def objective(trial):
    one = nn.Sequential(*[nn.Linear(256, 256) for _ in range(2 + trial.number % 4)]).to(device)
    opt = torch.optim.Adam(one.parameters())
    x = X[:512].to(device)
    opt.zero_grad(); loss = one(x).pow(2).mean(); loss.backward(); opt.step()
    trial.set_user_attr("model", one)
    return loss.item()
study = Study()
study.optimize(objective, n_trials=60)
# %% federated-weights | 70MiB | local_weights
def local_update(one):
    opt = torch.optim.SGD(one.parameters(), lr=0.01)
    for _ in range(2):
        opt.zero_grad(); one(X[:512].to(device)).pow(2).mean().backward(); opt.step()
    return one.state_dict()
# ## cell
for rnd in range(2):
    local_weights = []
    for client in range(80):
        w = local_update(copy.deepcopy(net))
        local_weights.append(w)
    net.load_state_dict({k: torch.stack([w[k] for w in local_weights]).mean(0) for k in w})
# %% whole-train-set | 60MiB | dataset-on-device
X_np = np.random.randn(60000, 256).astype(np.float32)
# ## cell
train_x = torch.tensor(X_np).to(device)
for epoch in range(3):
    for idx in torch.randperm(len(train_x)).split(256):
        optimizer.zero_grad()
        net(train_x[idx]).pow(2).mean().backward()
        optimizer.step()
# %% sliding-windows | 60MiB | dataset-on-device.*X_seq
prices = np.cumsum(np.random.randn(20000, 4), 0).astype(np.float32)
# ## cell
def make_sequences(a, look_back=96):
    xs, ys = [], []
    for i in range(len(a) - look_back):
        xs.append(a[i:i + look_back])
        ys.append(a[i + look_back, 0])
    return torch.tensor(np.stack(xs)).to(device), torch.tensor(np.stack(ys)).to(device)
X_seq, y_seq = make_sequences(prices)
lstm, fc = nn.LSTM(4, 64, batch_first=True).to(device), nn.Linear(64, 1).to(device)
opt = torch.optim.Adam([*lstm.parameters(), *fc.parameters()])
for b in range(0, len(X_seq), 512):
    out, _ = lstm(X_seq[b:b + 512])
    loss = F.mse_loss(fc(out[:, -1]).squeeze(1), y_seq[b:b + 512])
    opt.zero_grad(); loss.backward(); opt.step()
# %% lm-training-step-method | 300MiB | , 32000\].*ogits
class TinyLM(nn.Module):
    def __init__(self, v=32000, d=64):
        super().__init__()
        self.tok = nn.Embedding(v, d)
        self.block = nn.TransformerEncoderLayer(d, 2, 128, batch_first=True)
    def forward(self, ids):
        return self.block(self.tok(ids)) @ self.tok.weight.t()
    def training_step(self, ids):
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
lm = TinyLM().to(device)
opt = torch.optim.AdamW(lm.parameters())
# ## cell
for step in range(5):
    batch = torch.randint(0, 32000, (8, 129)).to(device)
    loss = lm.training_step(batch)
    opt.zero_grad(); loss.backward(); opt.step()
# %% adam-first-step-in-fit | 85MiB | optimizer-state.*first step
class Regressor:
    def __init__(self, width=1024):
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width * 2), nn.ReLU(), nn.Linear(width * 2, 1)).to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
    def fit(self, X, y, bs=64):
        for i in range(0, len(X), bs):
            loss = F.mse_loss(self.net(X[i:i + bs].to(device)).squeeze(1), y[i:i + bs].to(device))
            self.opt.zero_grad(); loss.backward(); self.opt.step()
        return self
# ## cell
reg = Regressor().fit(torch.randn(256, 64), torch.randn(256))
# %% left-beside-a-loader | 120MiB | earlier-cells.*big_x
big_x = torch.randn(60, 1024, 256, device=device)
small = DataLoader(TensorDataset(torch.randn(64, 256)), batch_size=8)
# ## cell
with torch.no_grad():
    for (x,) in small:
        y = net(x.to(device)).cpu()
z = torch.zeros(30, 1024, 256, device=device)
# %% data-set-of-a-loader | 130MiB | dataset-on-device.*set_x
set_x = torch.randn(60, 1024, 256, device=device).view(-1, 256)
batches = DataLoader(TensorDataset(set_x), batch_size=8192)
# ## cell
with torch.no_grad():
    for (x,) in batches:
        y = net(x).cpu()
z = torch.zeros(20, 1024, 256, device=device)
