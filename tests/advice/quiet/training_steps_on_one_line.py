import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

# --- cell
m = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]).to(device); o = torch.optim.AdamW(m.parameters())
for _ in range(3): x = torch.randn(1024, 512, device=device); l = m(x).pow(2).mean(); o.zero_grad(); l.backward(); o.step()
