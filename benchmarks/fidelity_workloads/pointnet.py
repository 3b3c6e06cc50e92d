# Edge convolutions over points, nearest neighbours, Chamfer distance, float32; AdamW.
import torch
import torch.nn as nn

batch_size = 8
points = 1024
near = 16
width = 64


def neighbours(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    square = torch.sum(x**2, dim=1, keepdim=True)
    return (-square - inner - square.transpose(2, 1)).topk(k=k, dim=-1)[1]


class EdgeConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(2 * inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.2),
        )

    def forward(self, x):
        b, d, n = x.shape
        index = neighbours(x, near) + torch.arange(b, device=x.device).view(-1, 1, 1) * n
        flat = x.transpose(2, 1).reshape(b * n, -1)
        feature = flat[index.view(-1)].view(b, n, near, d)
        own = x.transpose(2, 1).unsqueeze(2).expand(-1, -1, near, -1)
        feature = torch.cat((feature - own, own), dim=3).permute(0, 3, 1, 2).contiguous()
        return self.conv(feature).max(dim=-1)[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = EdgeConv(3, width), EdgeConv(width, 2 * width)
        self.c = nn.Sequential(nn.Conv1d(3 * width, 512, 1), nn.BatchNorm1d(512), nn.ReLU())
        self.d = nn.Linear(512, 3 * points)

    def forward(self, x):
        a = self.a(x)
        b = self.b(a)
        return self.d(self.c(torch.cat([a, b], 1)).max(2).values).view(-1, points, 3)


def chamfer(a, b):
    d = torch.cdist(a, b)
    return d.min(1).values.mean() + d.min(2).values.mean()


model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(2):
    x = torch.randn(batch_size, 3, points, device="cuda")
    loss = chamfer(model(x), x.transpose(1, 2).contiguous())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
