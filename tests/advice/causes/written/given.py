# %% taught-through-the-teacher | 300MiB | ^frozen-layers-record .*goes through teacher
def tower(w): return nn.Sequential(nn.Linear(1024, w), *[m for _ in range(8) for m in (nn.GELU(), nn.Linear(w, w))], nn.Linear(w, 32))
student, teacher = tower(64).to(device), tower(512).to(device)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
T = 4.0
for step in range(4):
    x = torch.randn(6000, 1024, device=device)
    s = student(x)
    t = teacher(x)
    loss = F.kl_div((s / T).log_softmax(1), (t / T).softmax(1), reduction="batchmean") * T * T
    opt.zero_grad()
    loss.backward()
    opt.step()
# %% heads-of-edges | 160MiB | ^enlarged-result .*edges of a graph
class Attend(nn.Module):
    def __init__(self, d, h, o):
        super().__init__()
        self.h, self.lin, self.a = h, nn.Linear(d, h * o), nn.Parameter(torch.randn(h, o))
    def forward(self, x, edges):
        z = self.lin(x).view(len(x), self.h, -1)
        source, target = z.index_select(0, edges[0]), z.index_select(0, edges[1])
        weight = F.leaky_relu(((source + target) * self.a).sum(-1)).exp()
        return torch.zeros_like(z).index_add(0, edges[1], source * weight[..., None])
nodes = torch.randn(3000, 64, device=device); edges = torch.randint(0, 3000, (2, 100000), device=device)
Attend(64, 4, 32).to(device)(nodes, edges).mean().backward()
# %% states-of-optimizers-that-are-gone | 60MiB | ^second-optimizer .*states that earlier optimizers made
saved = {}
for task in range(30):
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x, y in [(X[:8].to(device), Y[:8].to(device))] * 2:
        loss = criterion(net(x), y)
        adam.zero_grad(); loss.backward(); adam.step()
    saved[task] = adam.state_dict()
# %% an-ensemble-at-once | 60MiB | ^weights-too-large .*modules that line 2 makes .*models of their own
ensemble = [nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).to(device) for _ in range(30)]
with torch.no_grad():
    votes = torch.stack([one(torch.randn(8, 512, device=device)) for one in ensemble]).mean(0)
# %% a-sum-in-a-closure | 60MiB | ^growth .*closure.total holds .* take total.detach\(\)
def make_meter():
    total, n = 0.0, 0
    def update(loss):
        nonlocal total, n
        total += loss; n += 1
        return total / n
    return update
meter = make_meter()
for x, y in loader:
    average = meter(criterion(net(x.to(device)), y.to(device)))
# %% an-attack-that-goes-on | 100MiB | ^growth .*adv in attack\(\) holds .*adv.detach\(\)
def attack(x, y, steps=40):
    adv = x.clone().requires_grad_(True)
    for _ in range(steps):
        loss = criterion(net(adv), y)
        g = torch.autograd.grad(loss, adv, create_graph=True)[0]
        adv = adv + 0.01 * g.sign()
        adv = torch.min(torch.max(adv, x - 0.1), x + 0.1)
    return adv
attack(X[:1024].to(device), Y[:1024].to(device))
# %% an-exact-kernel | 300MiB | ^enlarged-result .*linalg is given the matrix of all pairs
points = torch.rand(3000, 8, device=device, dtype=torch.float64); values = points.sum(1)
scale = torch.tensor(0.5, device=device, dtype=torch.float64, requires_grad=True)
def likelihood():
    far = torch.cdist(points, points).pow(2)
    kernel = torch.exp(-0.5 * far / scale**2) + 1e-4 * torch.eye(len(points), device=device, dtype=torch.float64)
    lower = torch.linalg.cholesky(kernel)
    return (values[:, None] * torch.cholesky_solve(values[:, None], lower)).sum() + lower.diagonal().log().sum()
likelihood().backward()
# %% scores-of-an-evaluation | 60MiB | ^growth .*scores\[\*\] holds \S+ \S+, made in line \d+, with their autograd graphs. [^.]*torch.no_grad\(\)
net.eval()
scores = []
for x, _ in progress(loader):
    output = net(x.to(device))
    scores.append(output)
# %% weights-before-in-a-list | 160MiB | ^copied-model line 5 makes 24.02 MiB on the device, one to a weight
wide = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to(device)
batch = torch.zeros(8192, 1024, device=device)
def remember(model):
    return [p.detach().clone() for p in model.parameters()]
before = remember(wide)
for step in range(3):
    wide(batch).square().mean().backward()
# %% importance-of-weights | 160MiB | ^copied-model line 4 makes
wide = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to(device)
batch = torch.zeros(8192, 1024, device=device)
fisher = {name: torch.zeros_like(p) for name, p in wide.named_parameters()}
for step in range(3):
    loss = wide(batch).square().mean()
    loss.backward()
# %% states-of-two-epochs | 150MiB | ^copied-model line 6 makes 48.05 MiB
wide = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to(device)
batch = torch.zeros(512, 1024, device=device)
states = []
for epoch in range(9):
    states.append({name: value.clone() for name, value in wide.state_dict().items()})
    wide(batch).square().mean().backward()
