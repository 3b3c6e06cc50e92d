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
accum = 4
opt.zero_grad()
for i, (xb, yb) in enumerate(zip(x.split(256), y.split(256))):
    loss = F.cross_entropy(model(xb), yb) / accum
    loss.backward()
    if (i + 1) % accum == 0:
        opt.step()
        opt.zero_grad()
