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

# --- cell
lrs, losses = [], []
for group in opt.param_groups:
    group["lr"] = 1e-6
for step in range(4):
    opt.zero_grad()
    loss = F.cross_entropy(model(x[:512]), y[:512])
    loss.backward()
    opt.step()
    lrs.append(opt.param_groups[0]["lr"])
    losses.append(loss.item())
    for group in opt.param_groups:
        group["lr"] *= 10
