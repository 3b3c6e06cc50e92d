# A capsule network: einsum votes, routing by agreement, float32; Adamax.
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 32
classes = 10


def squash(x):
    norm = x.norm(dim=-1, keepdim=True)
    return norm**2 / (1 + norm**2) * x / (norm + 1e-8)


class CapsNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 128, 9)
        self.primary = nn.Conv2d(128, 16 * 8, 9, stride=2)
        self.votes = nn.Parameter(0.01 * torch.randn(576, classes, 16, 8))
        self.decoder = nn.Sequential(
            nn.Linear(16 * classes, 512), nn.ReLU(), nn.Linear(512, 784), nn.Sigmoid()
        )

    def forward(self, x, labels):
        u = self.primary(F.relu(self.conv(x)))
        u = squash(u.view(x.size(0), 16, 8, -1).permute(0, 1, 3, 2).reshape(x.size(0), -1, 8))
        hat = torch.einsum("ncij,bnj->bnci", self.votes, u)
        logits = torch.zeros(*hat.shape[:3], 1, device=x.device)
        for _ in range(3):
            c = F.softmax(logits, dim=2)
            v = squash((c * hat).sum(dim=1, keepdim=True))
            logits = logits + (hat * v).sum(dim=-1, keepdim=True)
        v = v.squeeze(1)
        chosen = F.one_hot(labels, v.size(1)).to(v.dtype)
        return v.norm(dim=-1), self.decoder((v * chosen.unsqueeze(-1)).flatten(1))


model = CapsNet(classes).cuda()
optimizer = torch.optim.Adamax(model.parameters())
x = torch.rand(batch_size, 1, 28, 28).cuda()
y = torch.randint(0, classes, (batch_size,)).cuda()
for step in range(3):
    lengths, images = model(x, y)
    loss = F.multi_margin_loss(lengths, y) + 0.0005 * F.mse_loss(
        images, x.flatten(1), reduction="sum"
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
