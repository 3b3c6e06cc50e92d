import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.o = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.o(y.transpose(1, 2).reshape(B, T, D))
other = Block(256, 8).to(device)
adam = torch.optim.Adam(other.parameters())
blocks = nn.ModuleList(Block(256, 8) for _ in range(3)).to(device)
opt = torch.optim.SGD(blocks.parameters(), 0.1)

# --- cell
x0 = torch.randn(8, 256, 256, device=device)
for step in range(3):
    x = x0
    for b in blocks:
        x = b(x)
    loss = x.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
