# MobileNet: depthwise separable convolutions with squeeze-and-excitation; RMSprop.
import torch
import torch.nn.functional as F
from torch import nn

batch_size = 64
image = 224
width = 1.0


class SqueezeExcite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // 4, 1)
        self.fc2 = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.fc2(F.relu(self.fc1(scale))))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expand):
        super().__init__()
        hidden = inputs * expand
        self.residual = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden), nn.ReLU6(), SqueezeExcite(hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x) if self.residual else self.body(x)


channels = [int(c * width) for c in (16, 24, 32, 64, 96, 160)]
blocks = [nn.Conv2d(3, channels[0], 3, 2, 1, bias=False), nn.BatchNorm2d(channels[0]), nn.SiLU()]
for inputs, outputs in zip(channels, channels[1:]):
    blocks += [InvertedResidual(inputs, outputs, 2, 4), InvertedResidual(outputs, outputs, 1, 4)]
model = nn.Sequential(
    *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels[-1], 100)
).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
for _ in range(2):
    x = torch.randn(batch_size, 3, image, image, device="cuda")
    y = torch.randint(0, 100, (batch_size,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
