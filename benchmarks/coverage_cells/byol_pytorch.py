# %% byol | https://github.com/lucidrains/byol-pytorch
import torch
from byol_pytorch import BYOL
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 7, 4), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
)
learner = BYOL(net.cuda(), image_size=128, hidden_layer=-1).cuda()
opt = torch.optim.Adam(learner.parameters(), lr=3e-4)
for _ in range(3):
    loss = learner(torch.randn(16, 3, 128, 128, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    learner.update_moving_average()
