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
opt.zero_grad()
features = model[:4](x)
loss_a = F.cross_entropy(model[4](features), y)
loss_b = features.pow(2).mean()
loss_a.backward(retain_graph=True)
loss_b.backward()
opt.step()
opt.zero_grad()
