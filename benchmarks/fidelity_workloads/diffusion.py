# A diffusion model's block: residual convolutions with time embedding, attention; AdamW and EMA.
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 16
image = 64
width = 128


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2, self.conv2 = (
            nn.GroupNorm(32, outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.dropout(F.silu(self.norm2(h)), 0.1, self.training))


class Attention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        y = F.scaled_dot_product_attention(q.mT, k.mT, v.mT)
        return x + self.out(y.mT.reshape(b, c, h, w))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.pool = ResBlock(width, width, 4 * width), nn.Conv2d(width, width, 3, 2, 1)
        self.down2, self.att = ResBlock(width, 2 * width, 4 * width), Attention(2 * width)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.last = ResBlock(2 * width, width, 4 * width)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        steps = torch.exp(
            -math.log(10000) * torch.arange(width // 2, device=x.device) / (width // 2)
        )
        angles = t[:, None].float() * steps[None]
        t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.stem(x)
        a = self.down1(x, t)
        b = self.att(self.down2(self.pool(a), t))
        b = self.up(F.interpolate(b, scale_factor=2, mode="nearest"))
        return self.head(F.silu(self.last(torch.cat([a, b], 1), t)))


model = Denoiser().cuda()
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
for _ in range(2):
    clean = torch.randn(batch_size, 3, image, image, device="cuda")
    noise = torch.randn_like(clean)
    t = torch.randint(0, 1000, (batch_size,), device="cuda")
    a = alphas[t][:, None, None, None]
    loss = F.mse_loss(model(a.sqrt() * clean + (1 - a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.lerp_(fast, 0.01)
