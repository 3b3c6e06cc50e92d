# %% came | https://github.com/yangluo7/CAME
import torch
from came_pytorch import CAME
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = CAME(model.parameters(), lr=2e-4, weight_decay=1e-2, betas=(0.9, 0.999, 0.9999))
for _ in range(4):
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
