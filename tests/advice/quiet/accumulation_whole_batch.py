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
for epoch in range(2):
    opt.zero_grad(set_to_none=True)
    for xb, yb in zip(x.chunk(4), y.chunk(4)):
        (F.cross_entropy(model(xb), yb) / 4).backward()
    opt.step()
opt.zero_grad(set_to_none=True)
