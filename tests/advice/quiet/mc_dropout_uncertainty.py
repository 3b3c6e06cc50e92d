import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 1)).to(device)
x = torch.randn(512, 32)

# --- cell
model.train()  # dropout stays on
with torch.no_grad():
    draws = torch.stack([model(x.to(device)) for _ in range(20)])
mean, std = draws.mean(0).cpu(), draws.std(0).cpu()
