# %% simclr | https://docs.lightly.ai/self-supervised-learning/examples/simclr.html
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from torch import nn

backbone = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
).cuda()
head = SimCLRProjectionHead(64, 512, 128).cuda()
criterion = NTXentLoss()
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.06)
for _ in range(3):
    x0, x1 = (torch.randn(32, 3, 96, 96, device="cuda") for _ in range(2))
    loss = criterion(head(backbone(x0)), head(backbone(x1)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
