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
za = F.normalize(model(x[:512] + 0.1 * torch.randn_like(x[:512])), dim=-1)
zb = F.normalize(model(x[:512] + 0.1 * torch.randn_like(x[:512])), dim=-1)
logits = za @ zb.T / 0.1
goal = torch.arange(512, device=device)
loss = (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2
loss.backward()
opt.step()
opt.zero_grad()
