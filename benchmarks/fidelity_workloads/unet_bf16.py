# The upsampling kind of U-Net with GroupNorm in channels_last, autocast to bfloat16; AdamW.
import torch
from torch import nn

batch_size = 16
image = 256
width = 48


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(8, outputs)
        self.act = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(Block(3, width), Block(width, width))
        self.b = nn.Sequential(Block(width, 2 * width), Block(2 * width, 2 * width))
        self.c = nn.Sequential(Block(2 * width, 4 * width), Block(4 * width, 2 * width))
        self.d = nn.Sequential(Block(4 * width, 2 * width), Block(2 * width, width))
        self.e = nn.Sequential(Block(2 * width, width), nn.Conv2d(width, 21, 1))
        self.pool = nn.AvgPool2d(2)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, x):
        a = self.a(x)
        b = self.b(self.pool(a))
        c = self.c(self.pool(b))
        d = self.d(torch.cat([b, self.up(c)], 1))
        return self.e(torch.cat([a, self.up(d)], 1))


net = Net().to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(2):
    x = torch.randn(batch_size, 3, image, image, device="cuda")
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 21, (batch_size, image, image), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x), y, ignore_index=0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
