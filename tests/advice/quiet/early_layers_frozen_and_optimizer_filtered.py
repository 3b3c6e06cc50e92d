import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

backbone = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(256, 256), nn.GELU())]).to(device)
for p in backbone[:8].parameters():
    p.requires_grad = False
head = nn.Linear(256, 10).to(device)

# --- cell
params = [p for p in [*backbone.parameters(), *head.parameters()] if p.requires_grad]
opt = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.01)
for step in range(4):
    x, y = torch.randn(512, 256, device=device), torch.randint(0, 10, (512,), device=device)
    loss = F.cross_entropy(head(backbone(x)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
