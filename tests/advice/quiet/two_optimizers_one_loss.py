import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
loader = [(torch.randn(512, 256), torch.randn(512, 256)) for _ in range(6)]

# --- cell
enc = nn.Sequential(nn.Linear(256, 512), nn.ReLU()).to(device); dec = nn.Linear(512, 256).to(device)
oe, od = torch.optim.Adam(enc.parameters()), torch.optim.Adam(dec.parameters())
for x, _ in loader:
    x = x.to(device)
    l = F.mse_loss(dec(enc(x)), x)
    oe.zero_grad(); od.zero_grad(); l.backward(); oe.step(); od.step()
