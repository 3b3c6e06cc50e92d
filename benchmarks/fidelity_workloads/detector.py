# A detector's parts: feature pyramid, focal loss, warping, volumes, float32; SGD.
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4
size = 96
width = 32

backbone = nn.ModuleList(
    [
        nn.Conv2d(3, width, 3, 2, 1),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.Conv2d(2 * width, 4 * width, 3, 2, 1),
    ]
).cuda()
lateral = nn.ModuleList([nn.Conv2d(c, width, 1) for c in (width, 2 * width, 4 * width)]).cuda()
head = nn.Conv2d(width, 9 * 20, 3, padding=1).cuda()
warp = nn.Linear(6, 6).cuda()
up = nn.Sequential(
    nn.Conv2d(width, 4 * 3, 3, padding=1),
    nn.PixelShuffle(2),
    nn.ReflectionPad2d(1),
    nn.AvgPool2d(3, 1),
).cuda()
volume = nn.Sequential(
    nn.Conv3d(1, 8, 3, padding=1),
    nn.BatchNorm3d(8),
    nn.ELU(),
    nn.MaxPool3d(2),
    nn.ConvTranspose3d(8, 1, 2, 2),
).cuda()
modules = nn.ModuleList([backbone, lateral, head, warp, up, volume])
optimizer = torch.optim.SGD(modules.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
for step in range(2):
    x = torch.randn(batch_size, 3, size, size, device="cuda")
    theta = warp(torch.ones(batch_size, 6, device="cuda")).view(-1, 2, 3)
    x = F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)
    maps = []
    for conv in backbone:
        x = F.relu(conv(x))
        maps.append(x)
    top = None
    losses = []
    for m, side in zip(reversed(maps), reversed(lateral)):
        p = side(m)
        top = p if top is None else p + F.interpolate(top, size=p.shape[-2:], mode="nearest")
        logits = head(top).permute(0, 2, 3, 1).reshape(batch_size, -1, 20)
        target = torch.zeros_like(logits)
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        p_t = torch.sigmoid(logits) * target + (1 - torch.sigmoid(logits)) * (1 - target)
        losses.append((ce * (1 - p_t) ** 2).mean())
    v = volume(torch.randn(2, 1, 16, 16, 16, device="cuda"))
    loss = (
        sum(losses)
        + up(top).abs().mean()
        + F.kl_div(
            v.flatten(1).log_softmax(-1),
            torch.full_like(v.flatten(1), 1 / 4096),
            reduction="batchmean",
        )
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
