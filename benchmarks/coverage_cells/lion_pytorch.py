# %% lion | https://github.com/lucidrains/lion-pytorch
import torch
from lion_pytorch import Lion
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
opt = Lion(model.parameters(), lr=1e-4, weight_decay=1e-2)
for _ in range(4):
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    opt.step()
    opt.zero_grad()
