# %% attention-by-hand-bias | 250MiB | attention|enlarged
class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.q, self.k, self.v, self.o = h, *(nn.Linear(d, d) for _ in range(4))
    def forward(self, x):
        B, T, D = x.shape
        split = lambda t: t.view(B, T, self.h, D // self.h).transpose(1, 2)
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        att = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D // self.h)
        att = att.softmax(-1)
        return self.o(torch.einsum("bhij,bhjd->bhid", att, v).transpose(1, 2).reshape(B, T, D))
blocks = nn.ModuleList(Block(256, 8) for _ in range(3)).to(device)
opt = torch.optim.SGD(blocks.parameters(), 0.1)
x = torch.randn(2, 1024, 256, device=device)
for b in blocks:
    x = b(x)
x.mean().backward()
opt.step()
# %% interpolate-masks | 200MiB | interpolat|upsampl|enlarged|too large|resol
masks = torch.rand(60, 1, 56, 56, device=device)
full = F.interpolate(masks, size=(1080, 1920), mode="bilinear", align_corners=False)
keep = (full > 0.5).cpu()
# %% frozen-backbone-grad | 220MiB | frozen|requires_grad|no_grad
backbone = nn.Sequential(*[m for _ in range(10) for m in (nn.Linear(256, 256), nn.GELU())]).to(device)
head = nn.Linear(256, 10).to(device)
opt = torch.optim.Adam(head.parameters(), 1e-3)
backbone.eval()
for step in range(3):
    xb = torch.randn(10000, 256, device=device); yb = torch.randint(0, 10, (10000,), device=device)
    feats = backbone(xb)
    loss = F.cross_entropy(head(feats), yb)
    opt.zero_grad(); loss.backward(); opt.step()
# %% adamw-two-models | 250MiB | second-model|earlier|model_v1|old
# ## earlier
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to(device)
opt = torch.optim.AdamW(model.parameters())
model(torch.randn(8, 1024, device=device)).sum().backward(); opt.step()
# ## cell
model2 = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).to(device)
opt2 = torch.optim.AdamW(model2.parameters())
for _ in range(2):
    model2(torch.randn(8, 1024, device=device)).sum().backward(); opt2.step(); opt2.zero_grad()
# %% checkpointable-depth | 220MiB | checkpoint|activations|batch
class Res(nn.Module):
    def __init__(self, d):
        super().__init__(); self.a = nn.Linear(d, 4 * d); self.b = nn.Linear(4 * d, d)
    def forward(self, x): return x + self.b(F.gelu(self.a(x)))
trunk = nn.Sequential(*[Res(128) for _ in range(16)]).to(device)
opt = torch.optim.AdamW(trunk.parameters())
def train_step(x):
    opt.zero_grad()
    loss = trunk(x).pow(2).mean()
    loss.backward()
    opt.step()
    return loss.item()
for _ in range(3):
    train_step(torch.randn(16, 128, 128, device=device))
# %% kv-cache-manual | 200MiB | kv|cache|keys|growth
attn_k = nn.Linear(256, 256).to(device); attn_v = nn.Linear(256, 256).to(device)
ks, vs = None, None
tok = torch.randn(256, 1, 256, device=device)
with torch.inference_mode():
    for t in range(4000):
        k, v = attn_k(tok), attn_v(tok)
        ks = k if ks is None else torch.cat([ks, k], 1)
        vs = v if vs is None else torch.cat([vs, v], 1)
        tok = F.scaled_dot_product_attention(tok, ks, vs)
# %% traceback-holds | 200MiB | exception|traceback|error
# ## earlier
def fit(n):
    batch = torch.randn(n, 256, device=device)
    hidden = net[:4](batch)
    return hidden @ torch.ones(13, 3, device=device)
fit(30000)  # raises
# ## cell
xb = torch.randn(45000, 256, device=device)
with torch.no_grad():
    out = net(xb)
# %% cosine-all | 400MiB | enlarged|pairs|F.normalize
feats = torch.randn(700, 128, device=device)
sim = F.cosine_similarity(feats[:, None, :], feats[None, :, :], dim=-1)
loss = (sim - torch.eye(len(feats), device=device)).pow(2).mean()
# %% broadcast-mistake | 300MiB | broadcast|\[n, 1\]|enlarged|shape
reg = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
xs = torch.randn(9000, 16, device=device); ys = torch.randn(9000, device=device)
loss = ((reg(xs) - ys) ** 2).mean()
loss.backward()
# %% adam-embedding-large | 400MiB | embedding|sparse|Adam
emb = nn.Embedding(200_000, 128).to(device)
opt = torch.optim.Adam(emb.parameters())
for _ in range(2):
    e = emb(torch.randint(0, 200_000, (256,), device=device))
    loss = e.pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
# %% float64-numpy | 90MiB | float64|double
arr = np.random.rand(40_000, 256)
xt = torch.from_numpy(arr).to(device)
m64 = nn.Linear(256, 64).to(device).double()
with torch.no_grad():
    z = m64(xt)
# %% two-cells-old-model | 120MiB | earlier|second-model|old
# ## earlier
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).to(device)
out = model(torch.randn(256, 1024, device=device))
# ## cell
student = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(14)]).to(device)
pred = student(torch.randn(256, 1024, device=device))
# %% amp-cache-eval | 200MiB | no_grad
big = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(512, 512), nn.GELU())]).to(device)
with torch.autocast("cuda", dtype=torch.float16):
    out = big(torch.randn(8000, 512, device=device))
score = out.float().mean().item()
# %% cdist-big | 250MiB | cdist|pairs|enlarged
a = torch.randn(9000, 32, device=device)
d = torch.cdist(a, a)
nearest = d.fill_diagonal_(float("inf")).argmin(1)
# %% log-softmax-vocab | 300MiB | logits|last layer|enlarged|pieces
lm = nn.Sequential(nn.Embedding(30000, 64), nn.Linear(64, 30000)).to(device)
toks = torch.randint(0, 30000, (4, 256), device=device)
logp = lm(toks).log_softmax(-1)
nll = -logp.gather(-1, toks.unsqueeze(-1)).mean()
nll.backward()
# %% hooks-features | 90MiB | growth.*(acts|feats)|hook
acts = collections.defaultdict(list)
hs = [m.register_forward_hook(lambda m, i, o, n=n: acts[n].append(o)) for n, m in net.named_modules() if isinstance(m, nn.Linear)]
with torch.no_grad():
    for xb, _ in loader:
        net(xb.to(device))
# %% predict-after-training | 130MiB | no_grad
# ## earlier
deep = nn.Sequential(*[m for _ in range(10) for m in (nn.Linear(256, 256), nn.ReLU())]).to(device)
opt = torch.optim.Adam(deep.parameters())
for i in range(3):
    loss = criterion(deep(X[i*512:(i+1)*512].to(device)), Y[i*512:(i+1)*512].to(device))
    opt.zero_grad(); loss.backward(); opt.step()
# ## cell
y_pred = deep(X[:16000].to(device))
accuracy = (y_pred.argmax(1).cpu() == Y[:16000].argmax(1)).float().mean()
# %% test-loss-after-training | 130MiB | no_grad
# ## earlier
deep = nn.Sequential(*[m for _ in range(10) for m in (nn.Linear(256, 256), nn.ReLU())]).to(device)
opt = torch.optim.Adam(deep.parameters())
for i in range(3):
    loss = criterion(deep(X[i*512:(i+1)*512].to(device)), Y[i*512:(i+1)*512].to(device))
    opt.zero_grad(); loss.backward(); opt.step()
# ## cell
y_pred = deep(X[:16000].to(device))
test_loss = criterion(y_pred, Y[:16000].to(device))
print(f"test loss {test_loss.item():.4f}")
# %% cam-grads-kept | 150MiB | growth.*(grads|acts|maps)
class Cam:
    def __init__(self, layer):
        self.acts, self.grads = [], []
        layer.register_forward_hook(lambda m, i, o: self.acts.append(o.detach()))
        layer.register_full_backward_hook(lambda m, gi, go: self.grads.append(go[0]))
cnn = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).to(device)
cam = Cam(cnn[0])
for i in range(100):
    img = torch.randn(4, 3, 128, 128, device=device)
    cnn(img)[:, 0].sum().backward()
    cnn.zero_grad()
# %% tensorboard-hist | 90MiB | growth.*(scalars|hist|log)
class Writer:
    def __init__(self): self.scalars = collections.defaultdict(list)
    def add_scalar(self, tag, value, step): self.scalars[tag].append((step, value))
w = Writer()
for i, (xb, yb) in enumerate(loader):
    loss = criterion(net(xb.to(device)), yb.to(device))
    optimizer.zero_grad(); loss.backward(retain_graph=True); optimizer.step()
    w.add_scalar("loss", loss, i)
# %% softmax-attn-three-copies | 280MiB | attention|enlarged
def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p = F.dropout(F.softmax(scores, -1), 0.1)
    return p @ v, p
mha_q = nn.Linear(128, 128).to(device)
x = torch.randn(8, 1024, 128, device=device)
q = mha_q(x).view(8, 1024, 4, 32).transpose(1, 2)
out, p = attention(q, q, q, torch.ones(1024, 1024, device=device).tril())
out.mean().backward()
# %% stack-video-frames | 250MiB | growth.*frames|batch|cpu
frames = []
enc = nn.Conv2d(3, 32, 3, padding=1).to(device)
with torch.no_grad():
    for t in range(60):
        frame = torch.rand(3, 224, 224, device=device)
        frames.append(enc(frame[None]))
    clip = torch.cat(frames)
# %% loader-of-an-earlier-data-set | 160MiB | dataset-on-device.*data_set holds 100
# ## earlier
Xg, Yg = X.to(device), Y.to(device)
data_set = TensorDataset(Xg, Yg)
# ## cell
for i, (xb, yb) in enumerate(DataLoader(data_set, batch_size=256, shuffle=True)):
    optimizer.zero_grad()
    criterion(net(xb), yb).backward()
    optimizer.step()
    if i == 5: break
acts = net(torch.randn(12000, 256, device=device))
# %% next-word-of-all-scores | 150MiB | last position alone
scorer = nn.Sequential(nn.Embedding(16000, 64), nn.Linear(64, 16000)).to(device).eval()
ids = torch.randint(0, 16000, (2, 1024), device=device)
with torch.no_grad():
    following = scorer(ids)[:, -1].argmax(-1)
# %% r2-of-kept-predictions | 290MiB | preds, of an earlier cell, keeps 100 results
# ## earlier
net.eval()
preds = []
for xb, yb in progress(loader):
    preds.append(net(xb.to(device)))
# ## cell
y_hat = torch.cat(preds)
ss = ((Y.to(device) - y_hat) ** 2).sum().item()
# %% zeros-kept-into-evaluation | 260MiB | gradients-kept.*filled with zeros
wide = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]).to(device)
opt = torch.optim.SGD(wide.parameters(), 0.1)
for _ in range(2):
    wide(torch.randn(64, 2048, device=device)).sum().backward()
    opt.step()
    opt.zero_grad(set_to_none=False)
with torch.no_grad():
    score = wide(torch.randn(8000, 2048, device=device)).mean()
