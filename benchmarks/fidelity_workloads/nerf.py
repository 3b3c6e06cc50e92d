# NeRF: volume rendering with importance sampling, float32; Adam.
import torch
import torch.nn as nn

rays = 1024
samples = 64
width = 128


class Field(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Sequential(
            nn.Linear(63, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.b = nn.Sequential(nn.Linear(width + 63, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, x):
        f = 2.0 ** torch.arange(10, device=x.device)
        e = (x[..., None, :] * f[:, None]).flatten(-2)
        e = torch.cat([x, e.sin(), e.cos()], -1)
        return self.b(torch.cat([self.a(e), e], -1))


def render(out, z):
    delta = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-torch.relu(out[..., 3]) * delta)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[
        :, :-1
    ]
    weights = alpha * through
    return (weights[..., None] * out[..., :3].sigmoid()).sum(-2), weights


field = Field(width).cuda()
optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
for step in range(2):
    o = torch.randn(rays, 3, device="cuda")
    d = torch.nn.functional.normalize(torch.randn(rays, 3, device="cuda"), dim=-1)
    z = (
        torch.linspace(2, 6, samples, device="cuda").expand(rays, samples)
        + torch.rand(rays, samples, device="cuda") * 0.1
    )
    rgb, weights = render(field(o[:, None] + d[:, None] * z[..., None]), z)
    cdf = torch.cumsum(weights.detach() + 1e-5, -1)
    u = torch.rand(rays, samples, device="cuda").contiguous()
    at = torch.searchsorted(cdf, u, right=True).clamp(max=samples - 1)
    fine, _ = torch.sort(torch.cat([z, z.gather(1, at)], -1), -1)
    rgb2, _ = render(field(o[:, None] + d[:, None] * fine[..., None]), fine)
    target = torch.rand(rays, 3, device="cuda")
    loss = ((rgb - target) ** 2).mean() + ((rgb2 - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
