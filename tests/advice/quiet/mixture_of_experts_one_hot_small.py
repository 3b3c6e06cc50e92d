import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class Experts(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.gate, self.experts = nn.Linear(d, n), nn.ModuleList(nn.Linear(d, d) for _ in range(n))
    def forward(self, x):
        w, i = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows, place = (i == n).nonzero(as_tuple=True)
            out.index_add_(0, rows, expert(x[rows]) * w[rows, place, None])
        return out
moe = Experts(128, 4).to(device)
opt = torch.optim.AdamW(moe.parameters())

# --- cell
for _ in range(5):
    x = torch.randn(4096, 128, device=device)
    loss = F.mse_loss(moe(x), x)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
