# %% perplexity-before-logits | 1GiB | ^eval-is-not-no-grad .*lines 6-7
# ## earlier
class LM(nn.Module):
    def __init__(self, V=8000, d=128):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 256, batch_first=True) for _ in range(2)])
        self.head = nn.Linear(d, V)
    def forward(self, ids):
        h = self.emb(ids)
        for l in self.layers: h = l(h)
        return self.head(h)
lm = LM().to(device)
text = torch.randint(0, 8000, (1, 20000))
# ## cell
lm.eval()
nlls = []
for i in range(0, 20000 - 1024, 1024):
    ids = text[:, i:i+1024].repeat(8, 1).to(device)
    logits = lm(ids)
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, 8000), ids[:, 1:].reshape(-1))
    nlls.append(loss.item())
print(math.exp(sum(nlls) / len(nlls)))
# %% perplexity-in-a-function | 700MiB | ^missing-no-grad .*line 8
# ## earlier
class LM(nn.Module):
    def __init__(self, V=16000, d=128):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 256, batch_first=True) for _ in range(2)])
        self.head = nn.Linear(d, V)
    def forward(self, ids, labels=None):
        h = self.emb(ids)
        for l in self.layers: h = l(h)
        logits = self.head(h)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1))
        return types.SimpleNamespace(loss=loss, logits=logits)
lm = LM().to(device)
text = torch.randint(0, 16000, (1, 20000))
# ## cell
def perplexity(model, ids, stride=512, length=1024):
    nll_sum, n = 0.0, 0
    for begin in range(0, ids.size(1) - length, stride):
        chunk = ids[:, begin:begin + length].expand(4, -1).to(device)
        target = chunk.clone()
        target[:, :-stride] = -100
        out = model(chunk, labels=target)
        nll_sum += out.loss.item() * stride; n += stride
    return math.exp(nll_sum / n)
lm.eval()
print(perplexity(lm, text))
# %% neighbours-that-are-looked-up | 400MiB | ^enlarged-result .*index makes \[20000, 16, 128\] .*lin\(x\)\[index\]
# ## earlier
lin = nn.Linear(128, 128).to(device)
feat = torch.randn(20000, 128, device=device)
nbr = torch.randint(0, 20000, (20000, 16), device=device)
# ## cell
h = lin(feat[nbr])
loss = h.max(1).values.pow(2).mean()
loss.backward()
# %% neighbours-of-each-cloud | 700MiB | ^enlarged-result .*index makes \[8, 2048, 16, 64\] .*lin\(x\)\[index\]
# ## earlier
def index_points(points, idx):
    B = points.shape[0]
    view = [B] + [1] * (idx.dim() - 1)
    b = torch.arange(B, device=points.device).view(view).expand_as(idx)
    return points[b, idx]
class PointTransformer(nn.Module):
    def __init__(self, d=64, k=16):
        super().__init__(); self.k = k
        self.q, self.kk, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.pos = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.w = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
    def forward(self, xyz, f):
        idx = torch.cdist(xyz, xyz).argsort()[:, :, : self.k]
        k, v = index_points(self.kk(f), idx), index_points(self.v(f), idx)
        pos = self.pos(xyz[:, :, None] - index_points(xyz, idx))
        a = self.w(self.q(f)[:, :, None] - k + pos).softmax(-2)
        return (a * (v + pos)).sum(2)
pt = PointTransformer().to(device)
# ## cell
xyz, f = torch.randn(8, 2048, 3, device=device), torch.randn(8, 2048, 64, device=device)
pt(xyz, f).pow(2).mean().backward()
# %% neighbours-by-gather | 800MiB | ^enlarged-result .*gather makes \[4, 131072, 64\] .*lin\(x\)\[index\]
def knn_gather(x, idx):
    B, N, C = x.shape; k = idx.shape[-1]
    return torch.gather(x, 1, idx.reshape(B, -1, 1).expand(-1, -1, C)).view(B, N, k, C)
proj = nn.Linear(64, 64).to(device)
x = torch.randn(4, 4096, 64, device=device, requires_grad=True)
idx = torch.randint(0, 4096, (4, 4096, 32), device=device)
nb = knn_gather(x, idx)
out = (proj(nb) - x.unsqueeze(2)).relu().amax(2)
out.mean().backward()
# %% scores-and-labels-of-a-batch | 60MiB | ^growth .*1\.00 MiB in each of 3\d passes: auroc\.labels\[\*\] and auroc\.scores\[\*\] hold
class AUROC:
    def __init__(self): self.reset()
    def reset(self): self.scores, self.labels = [], []
    def __call__(self, s, y): self.scores.append(s); self.labels.append(y)
    def compute(self): return torch.cat(self.scores).mean()
auroc = AUROC()
@torch.inference_mode()
def evaluate(model, dl, metric):
    model.eval()
    for batch in progress(dl, desc="eval"):
        x, y = (b.to(device, non_blocking=True) for b in batch)
        metric(model(x).sigmoid(), y)
    return metric.compute()
evaluate(net, loader, auroc)
# %% tree-of-states | 60MiB | ^growth .*512\.00 KiB in each of 7\d passes: root\.children\[\*\] holds
class Node:
    def __init__(self, state): self.state, self.children, self.value = state, [], None
root = Node(torch.randn(512, 256, device=device))
node = root
with torch.no_grad():
    for sim in range(400):
        nxt = Node(net(node.state))
        node.children.append(nxt)
        nxt.value = nxt.state.mean().item()
        if sim % 3 == 2: node = nxt
# %% weights-of-an-inner-loop | 90MiB | ^growth .*2\.45 MiB in each of 19 passes: inner\[0\.\.1\] holds 46
theta = [torch.randn(512, 512, device=device, requires_grad=True) for _ in range(2)]
def model_fn(x, p): return torch.tanh(x @ p[0]) @ p[1]
xs, ys = torch.randn(256, 512, device=device), torch.randn(256, 512, device=device)
inner = theta
for k in range(40):
    l = F.mse_loss(model_fn(xs, inner), ys)
    gr = torch.autograd.grad(l, inner, create_graph=True)
    inner = [p - 0.01 * g for p, g in zip(inner, gr)]
F.mse_loss(model_fn(xs, inner), ys).backward()
# %% triples-are-no-distances | 1GiB | ^enlarged-result .*All pairs at once
emb = F.normalize(torch.randn(1200, 128, device=device, requires_grad=True), dim=1)
labels = torch.randint(0, 10, (1200,), device=device)
d = 1 - emb @ emb.T
trip = d.unsqueeze(2) - d.unsqueeze(1) + 0.2
mask = (labels[:, None] == labels[None]).unsqueeze(2) & (labels[:, None] != labels[None]).unsqueeze(1)
loss = (trip.relu() * mask).sum() / mask.sum()
loss.backward()
# %% bits-of-each-byte | 700MiB | ^missing-no-grad .*line 5
# ## earlier
class Net(nn.Module):
    def __init__(self, V=256, d=384, n=8):
        super().__init__(); self.e = nn.Embedding(V, d)
        self.b = nn.ModuleList([nn.TransformerEncoderLayer(d, 6, 4 * d, batch_first=True, norm_first=True) for _ in range(n)]); self.head = nn.Linear(d, V)
    def forward(self, x):
        h = self.e(x)
        for b in self.b: h = b(h)
        return self.head(h)
bm = Net().to(device)
data = torch.randint(0, 256, (20000,))
# ## cell
i, bits, n = 0, 0., 0
while i + 513 < len(data):
    xy = data[i:i + 513].unsqueeze(0).repeat(2, 1).to(device)
    logits = bm(xy[:, :-1])
    bits += F.cross_entropy(logits.reshape(-1, 256), xy[:, 1:].reshape(-1), reduction="sum") / math.log(2)
    n += 1024; i += 512
print((bits / n).item())
# %% weights-of-each-tokens-expert | T4 | ^enlarged-result .*index makes \[2048, 256, 256\] .*\(x\[index == i\] @ w\[i\]\)
W = nn.Parameter(torch.randn(16, 256, 256, device=device) * 0.02)
tok = torch.randn(2048, 256, device=device)
eid = torch.randint(0, 16, (2048,), device=device)
y = torch.bmm(tok.unsqueeze(1), W[eid]).squeeze(1)
y.square().mean().backward()
# %% groups-around-centres | 900MiB | ^enlarged-result .*index makes \[4096, 64, 128\] .*lin\(x\)\[index\]
# ## earlier
class SetAbstraction(nn.Module):
    def __init__(self, m, k, c, o): super().__init__(); self.m, self.k = m, k; self.mlp = nn.Sequential(nn.Linear(c, o), nn.ReLU(), nn.Linear(o, o), nn.ReLU())
    def forward(self, xyz, f):
        ctr = torch.randperm(len(xyz), device=xyz.device)[: self.m]
        idx = torch.cdist(xyz[ctr], xyz).topk(self.k, largest=False).indices
        return xyz[ctr], self.mlp(f[idx]).amax(1)
# ## cell
sa = SetAbstraction(4096, 64, 128, 128).to(device)
xyz, f = torch.rand(16384, 3, device=device), torch.randn(16384, 128, device=device)
_, g = sa(xyz, f)
g.square().mean().backward()
