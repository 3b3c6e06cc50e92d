# %% closure-running-mean | 150MiB | total in step\(\)
def make_eval(model):
    total, n = torch.zeros((), device=device), 0
    def step(xb, yb):
        nonlocal total, n
        loss = criterion(model(xb), yb)
        total = total + loss
        n += 1
        return total / n
    return step
step = make_eval(net.eval())
for xb, yb in loader:
    avg = step(xb.to(device), yb.to(device))
print(avg.item())
# %% heads-over-one-trunk | 160MiB | retained-graph.*last pass of the loop on line 10
trunk = nn.Sequential(*[nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)) for _ in range(4)]).to(device)
heads = nn.ModuleDict({k: nn.Linear(256, 10) for k in "abc"}).to(device)
opt = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], 0.1)
for it in range(4):
    x = torch.randn(2048, 256, device=device)
    y = torch.randint(0, 10, (2048,), device=device)
    shared = trunk(x)
    opt.zero_grad()
    for name, head in heads.items():
        F.cross_entropy(head(shared), y).backward(retain_graph=True)
    opt.step()
    with torch.no_grad():
        drift = trunk(torch.randn(6000, 256, device=device)).mean().item()
# %% hook-of-a-closure | 60MiB | store.*hook registered on line 10
def saving(store):
    def hook(module, given, output):
        store.append(output.detach())
    return hook
store = []
for epoch in range(4):
    for name, module in net.named_modules():
        if isinstance(module, nn.Tanh):
            module.register_forward_hook(saving(store))
    for xb, yb in list(loader)[:10]:
        loss = criterion(net(xb.to(device)), yb.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
# %% hook-that-is-a-lambda | 100MiB | FEATS.*hook registered on line 5
vgg = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()).to(device)
FEATS = []
for i in (1, 3):
    vgg[i].register_forward_hook(lambda module, given, output: FEATS.append(output))
vgg.eval().requires_grad_(False)
for it in range(40):
    vgg(torch.rand(4, 3, 64, 64, device=device))
    mean = FEATS[-1].mean().item()
# %% hook-that-is-an-object | 90MiB | calibration.stats.*hook registered on line 8
class Calibration:
    stats = None
    def __call__(self, module, given, output):
        flat = output.detach().flatten()
        self.stats = flat if self.stats is None else torch.cat([self.stats, flat])
calibration = Calibration()
net[2].register_forward_hook(calibration)
with torch.no_grad():
    for xb, _ in loader:
        net(xb.to(device))
# %% mutable-default | 90MiB | track: defaults.seen
def track(x, count=0, seen=[]):
    seen.append(x)
    return count + len(seen)
with torch.no_grad():
    for xb, _ in loader:
        track(net[:4](xb.to(device).repeat(2, 1)))
# %% images-and-labels-moved-under-their-names | 150MiB | dataset-on-device.*images holds
images, labels = torch.rand(3000, 3, 64, 64), torch.randint(0, 10, (3000,))
conv, fc = nn.Conv2d(3, 8, 3, stride=2).to(device), nn.Linear(8, 10).to(device)
opt = torch.optim.Adam([*conv.parameters(), *fc.parameters()])
images, labels = images.to(device), labels.to(device)
for epoch in range(2):
    order = torch.randperm(len(images), device=device)
    for i in range(0, len(order), 256):
        batch = order[i : i + 256]
        loss = F.cross_entropy(fc(F.relu(conv(images[batch])).mean((2, 3))), labels[batch])
        opt.zero_grad(); loss.backward(); opt.step()
