# %% adamw | https://github.com/facebookresearch/schedule_free
import schedulefree
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.0025)
optimizer.train()
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
optimizer.eval()
