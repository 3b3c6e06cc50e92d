# U-Net for segmentation: transposed convolutions, skip connections, a Dice loss; Adam.
import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
image = 256
width = 32


def double(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(double(i, o) for i, o in zip([3, *sizes], sizes))
        self.middle = double(sizes[-1], 2 * sizes[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * s, s, 2, 2) for s in reversed(sizes))
        self.merge = nn.ModuleList(double(2 * s, s) for s in reversed(sizes))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def dice(logits, target):
    p = torch.sigmoid(logits)
    return 1 - 2 * (p * target).sum() / (p.sum() + target.sum() + 1e-6)


model = UNet().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(2):
    x = torch.randn(batch_size, 3, image, image, device="cuda")
    mask = torch.randint(0, 2, (batch_size, 1, image, image), device="cuda").float()
    logits = model(x)
    loss = F.binary_cross_entropy_with_logits(logits, mask) + dice(logits, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
