import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class Lora(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)
    def forward(self, x):
        return self.base(x) + self.b(self.a(x))
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(512, 512), nn.GELU())])
for n, m in list(model.named_children()):
    if isinstance(m, nn.Linear):
        setattr(model, n, Lora(m))
model.to(device)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)

# --- cell
losses = []
for step in range(5):
    x = torch.randn(256, 512, device=device)
    loss = F.mse_loss(model(x), x)
    loss.backward()
    opt.step()
    opt.zero_grad()
    losses.append(loss.detach())
print(torch.stack(losses).mean().item())
