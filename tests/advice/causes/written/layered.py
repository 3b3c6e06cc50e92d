# %% penalty-of-layers | 60MiB | ^growth .* each of \d+ passes: bnn\[\*\]\.kl holds .* goes on from pass to pass
# ## cell
class BayesLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(o, i)); self.rho = nn.Parameter(torch.full((o, i), -3.))
        self.kl = 0.0
    def forward(self, x):
        sigma = F.softplus(self.rho)
        w = self.mu + sigma * torch.randn_like(sigma)
        self.kl = self.kl + (sigma ** 2 + self.mu ** 2 - sigma.log() - 0.5).sum()
        return x @ w.t()
bnn = nn.Sequential(BayesLinear(256, 256), nn.ReLU(), BayesLinear(256, 256)).to(device)
opt = torch.optim.Adam(bnn.parameters())
for x, y in loader:
    opt.zero_grad()
    out = bnn(x.to(device))
    loss = criterion(out, y.to(device))
    loss.backward()
    opt.step()
# %% timings-of-a-lambda | 60MiB | ^growth .* results\[\*\] in bench\(\) holds .*detach
# ## cell
import time
def bench(fn, n=100):
    results = []
    for i in range(n):
        t0 = time.perf_counter()
        out = fn()
        torch.cuda.synchronize()
        results.append((time.perf_counter() - t0, out))
    return results
x = torch.randn(512, 256, device=device)
timings = bench(lambda: net(x))
# %% inputs-with-gradients | 60MiB | ^growth .* maps\[\*\] in saliency\(\) holds .*to the host
# ## cell
def saliency(model, batches):
    maps = {}
    for i, (x, _) in enumerate(batches):
        x = x.to(device).requires_grad_()
        score = model(x).max(1).values.sum()
        score.backward()
        maps[i] = x
    return maps
maps = saliency(net, loader)
# %% derivatives-of-the-input | 300MiB | ^activations
# ## cell
u = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
opt = torch.optim.Adam(u.parameters(), lr=1e-3)
for it in range(5):
    xt = torch.rand(40000, 2, device=device, requires_grad=True)
    v = u(xt)
    g = torch.autograd.grad(v, xt, torch.ones_like(v), create_graph=True)[0]
    gxx = torch.autograd.grad(g[:, 0], xt, torch.ones_like(g[:, 0]), create_graph=True)[0][:, 0]
    res = g[:, 1] - 0.1 * gxx
    loss = res.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
# %% targets-of-a-style | 260MiB | ^frozen-layers-record .*vgg(\(content\) \(line 9|\(style\) \(line 10)\).*no_grad
# ## cell
vgg = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()).to(device).eval()
content = torch.rand(1, 3, 384, 384, device=device)
style = torch.rand(1, 3, 384, 384, device=device)
def gram(f):
    b, c, h, w = f.shape
    f = f.view(c, h * w)
    return f @ f.t() / (c * h * w)
content_target = vgg(content)
style_target = gram(vgg(style))
img = content.clone().requires_grad_(True)
opt = torch.optim.Adam([img], lr=0.02)
for i in range(10):
    opt.zero_grad()
    feats = vgg(img)
    loss = (feats - content_target).pow(2).mean() + 1e3 * (gram(feats) - style_target).pow(2).sum()
    loss.backward(retain_graph=True)
    opt.step()
# %% points-along-rays | 700MiB | ^large-pass line 8 .*\[640000, 128\].* pieces
# ## cell
class NeRF(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(63, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.out = nn.Linear(128, 4)
    def forward(self, x):
        return self.out(self.body(x))
def encode(x, L=10):
    out = [x]
    for i in range(L):
        out += [torch.sin(2 ** i * x), torch.cos(2 ** i * x)]
    return torch.cat(out, -1)
def render(model, o, d, n=64):
    t = torch.linspace(2, 6, n, device=o.device)
    pts = o[:, None] + d[:, None] * t[:, None]
    raw = model(encode(pts))
    sigma = raw[..., 3].relu()
    w = 1 - torch.exp(-sigma * 0.06)
    T = torch.cumprod(1 - w + 1e-10, -1)
    return ((w * T)[..., None] * raw[..., :3].sigmoid()).sum(1)
nerf = NeRF().to(device)
o = torch.randn(100 * 100, 3, device=device)
d = torch.randn(100 * 100, 3, device=device)
image = render(nerf, o, d).reshape(100, 100, 3)
# %% zoo-of-models | 150MiB | ^growth .* zoo\[\*\] holds
# ## cell
def build(width):
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 256))
zoo = {f"mlp-{w}": build(w).to(device) for w in (1024, 1536, 2048, 2560, 3072)}
scores = {}
with torch.no_grad():
    for name, m in zoo.items():
        scores[name] = sum(criterion(m(x.to(device)), y.to(device)).item() for x, y in loader) / len(loader)
# %% optimizers-in-a-list | 150MiB | ^growth .* trials\[\*\] holds
# ## cell
trials = []
for lr in [1e-2, 1e-3, 1e-4, 1e-5]:
    m = nn.Sequential(nn.Linear(256, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 256)).to(device)
    o = torch.optim.Adam(m.parameters(), lr)
    for x, y in list(loader)[:2]:
        o.zero_grad(); criterion(m(x.to(device)), y.to(device)).backward(); o.step()
    trials.append((lr, o))
# %% jacobian-of-a-batch | 26MiB | ^growth .* passes: .* of line 4 stayed.*vmap
# ## cell
f = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(device)
x = torch.randn(32, 64, device=device)
J = torch.autograd.functional.jacobian(f, x)
# %% fisher-with-graphs | 90MiB | ^growth .* precision\[\*\] in fisher_diag\(\) holds .*detach
# ## cell
def fisher_diag(model, loader):
    precision = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for x, y in loader:
        out = model(x.to(device)).log_softmax(1)
        loss = F.nll_loss(out, out.argmax(1))
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        for (n, _), g in zip(model.named_parameters(), grads):
            precision[n] += g ** 2 / len(loader)
    return precision
prec = fisher_diag(net, loader)
# %% comprehension-that-is-joined | T4 | ^growth .* logits holds .*only collected(?!.*next pass)
# ## cell
logits = torch.cat([net(x.to(device)) for x, _ in loader])
best = logits.argmax(1).cpu()
