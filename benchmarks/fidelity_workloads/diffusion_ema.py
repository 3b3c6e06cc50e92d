# Diffusion with group norm, SiLU, attention and a moving average, float32; AdamW.
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 8
size = 32
width = 96


class Residual(nn.Module):
    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(16, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, 2 * outputs))
        self.norm = nn.GroupNorm(16, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        h = self.first(x)
        scale, shift = self.time(t)[:, :, None, None].chunk(2, dim=1)
        h = self.second(F.silu(self.norm(h) * (1 + scale) + shift))
        return self.skip(x) + h


class Attention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.norm = nn.GroupNorm(16, channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.out = nn.Conv1d(channels, channels, 1)
        self.heads = heads

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (
            self.qkv(self.norm(x).view(b, c, -1))
            .view(b * self.heads, 3 * c // self.heads, -1)
            .chunk(3, 1)
        )
        weight = torch.einsum("bct,bcs->bts", q / math.sqrt(c), k).softmax(-1)
        return x + self.out(torch.einsum("bts,bcs->bct", weight, v).reshape(b, c, -1)).view(x.shape)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(64, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.a = Residual(width, width, 4 * width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.b = Residual(2 * width, 2 * width, 4 * width)
        self.attention = Attention(2 * width)
        self.c = Residual(2 * width, width, 4 * width)
        self.d = Residual(2 * width, width, 4 * width)
        self.out = nn.Sequential(
            nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x, t):
        angles = t[:, None].float() * torch.exp(
            -torch.arange(32, device=x.device) * math.log(1e4) / 32
        )
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        first = self.a(self.stem(x), t)
        x = self.attention(self.b(self.down(first), t))
        x = F.interpolate(self.c(x, t), scale_factor=2, mode="nearest")
        return self.out(self.d(torch.cat([x, first], dim=1), t))


model = Net(width).cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
noise_level = torch.linspace(1e-4, 0.02, 1000, device="cuda")
kept = torch.cumprod(1 - noise_level, 0)
for step in range(3):
    x = torch.rand(batch_size, 3, size, size, device="cuda") * 2 - 1
    t = torch.randint(0, 1000, (batch_size,), device="cuda")
    noise = torch.randn_like(x)
    level = kept[t][:, None, None, None]
    loss = F.smooth_l1_loss(model(level.sqrt() * x + (1 - level).sqrt() * noise, t), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for mine, its in zip(average.parameters(), model.parameters()):
            mine.lerp_(its, 0.001)
