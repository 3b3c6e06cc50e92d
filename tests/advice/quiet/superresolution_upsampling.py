import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.shuffle = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)
    def forward(self, x):
        return self.shuffle(self.c2(F.relu(self.c1(x)))) + F.interpolate(x, scale_factor=3, mode="bicubic")
up = Up().to(device)
opt = torch.optim.Adam(up.parameters(), 1e-3)
small, large = torch.rand(20, 1, 40, 40), torch.rand(20, 1, 120, 120)
loader = DataLoader(TensorDataset(small, large), batch_size=8)

# --- cell
for epoch in range(2):
    running = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        opt.zero_grad()
        loss = F.mse_loss(up(x), y)
        loss.backward()
        opt.step()
        running += loss.item()
up.eval()
with torch.no_grad():
    psnr = sum(-10 * F.mse_loss(up(x.to(device)), y.to(device)).log10().item() for x, y in loader) / len(loader)
