import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(2048, 512, device=device)
y = torch.randint(0, 10, (2048,), device=device)
import copy

ema = copy.deepcopy(model).eval().requires_grad_(False)

# --- cell
for step in range(2):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.lerp_(fast, 0.01)
opt.zero_grad()
