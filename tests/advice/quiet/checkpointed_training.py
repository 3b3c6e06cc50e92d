import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)
).to(device)
opt = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
x = torch.randn(1024, 512, device=device)

# --- cell
opt.zero_grad()
h = x
for block in blocks:
    h = h + checkpoint(block, h, use_reentrant=False)
loss = h.pow(2).mean()
loss.backward()
opt.step()
opt.zero_grad()
