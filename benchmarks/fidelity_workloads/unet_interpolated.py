# A UNet with transposed convolutions, interpolation and a Dice loss, float16; RMSprop.
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4
size = 128
width = 32


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.InstanceNorm2d(outputs, affine=True),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.PReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(block(i, o) for i, o in zip([3, *widths[:-1]], widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(o, i, 2, stride=2) for i, o in zip(widths[:-1], widths[1:])
        )
        self.merge = nn.ModuleList(block(2 * i, i) for i in widths[:-1])
        self.out = nn.Conv2d(width, 5, 1)

    def forward(self, x):
        kept = []
        for i, down in enumerate(self.down):
            x = down(x)
            if i < 3:
                kept.append(x)
                x = F.max_pool2d(x, 2) if i else F.avg_pool2d(x, 2)
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            x = merge(torch.cat([up(x), kept.pop()], dim=1))
        x = self.out(x)
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def dice(logits, target):
    p = logits.softmax(1)
    t = F.one_hot(target, 5).permute(0, 3, 1, 2).float()
    inter = (p * t).sum((0, 2, 3))
    return 1 - (2 * inter / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1e-6)).mean()


model = UNet(width).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
images = torch.randn(batch_size, 3, size, size, device="cuda")
masks = torch.randint(0, 5, (batch_size, 2 * size, 2 * size), device="cuda")
for step in range(3):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(images)
        loss = F.cross_entropy(logits, masks) + dice(logits, masks)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
