import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

# --- cell
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
opt = torch.optim.AdamW(model.parameters())
x = torch.randn(1024, 1024).to(device)
print(sum(p.numel() for p in model.parameters()))
