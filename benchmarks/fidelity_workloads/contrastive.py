# Two towers and a contrastive loss over all pairs of a batch, as CLIP has it; fused Adam.
import torch
import torch.nn.functional as F
from torch import nn

batch_size = 2048
width = 512
hidden = 2048


class Tower(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.RMSNorm(hidden), nn.GELU(), nn.Linear(hidden, width),
        )  # fmt: skip

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


images, texts = Tower(1024).cuda(), Tower(768).cuda()
scale = nn.Parameter(torch.tensor(2.65, device="cuda"))
parameters = [*images.parameters(), *texts.parameters(), scale]
optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
target = torch.arange(batch_size, device="cuda")
for _ in range(2):
    a = images(torch.randn(batch_size, 1024, device="cuda"))
    b = texts(torch.randn(batch_size, 768, device="cuda"))
    logits = scale.exp() * a @ b.T
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
