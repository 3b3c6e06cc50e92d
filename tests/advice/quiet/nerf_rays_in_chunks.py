import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

field = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)).to(device)
opt = torch.optim.Adam(field.parameters(), 5e-4)
image = torch.rand(64 * 64, 3, device=device)
def rays(n):
    o = torch.zeros(n, 3, device=device); d = F.normalize(torch.randn(n, 3, device=device), dim=1)
    return o, d
def render(o, d, samples=32):
    t = torch.linspace(2, 6, samples, device=device)
    raw = field((o[:, None] + d[:, None] * t[:, None]).reshape(-1, 3)).view(len(o), samples, 4)
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * 0.1)
    w = alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return (w[..., None] * raw[..., :3].sigmoid()).sum(1)

# --- cell
for i in range(5):
    pick = torch.randint(0, len(image), (1024,), device=device)
    loss = F.mse_loss(render(*rays(1024)), image[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    view = torch.cat([render(*rays(512)).cpu() for _ in range(8)])
