# EfficientNet blocks: depthwise convolutions, squeeze and excitation, float32; RMSprop.
import torch
import torch.nn as nn

batch_size = 16
image = 112
width = 24


class SE(nn.Module):
    def __init__(self, channels, reduced):
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, reduced, 1),
            nn.SiLU(inplace=True),
            nn.Conv2d(reduced, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return x * self.gate(x)


class MBConv(nn.Module):
    def __init__(self, inputs, outputs, stride, kernel, expand=4):
        super().__init__()
        wide = inputs * expand
        self.same = inputs == outputs and stride == 1
        self.body = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(inplace=True),
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(inplace=True),
            SE(wide, max(1, inputs // 4)),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x):
        y = self.body(x)
        if self.same:
            keep = torch.rand(x.size(0), 1, 1, 1, device=x.device) > 0.1
            y = x + y * keep / 0.9
        return y


model = nn.Sequential(
    nn.Conv2d(3, width, 3, 2, 1, bias=False),
    nn.BatchNorm2d(width),
    nn.Hardswish(),
    MBConv(width, width, 1, 3),
    MBConv(width, 2 * width, 2, 3),
    MBConv(2 * width, 2 * width, 1, 5),
    MBConv(2 * width, 4 * width, 2, 5),
    MBConv(4 * width, 4 * width, 1, 3),
    nn.Conv2d(4 * width, 512, 1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(512, 1000),
).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for step in range(3):
    x = torch.randn(batch_size, 3, image, image).cuda(non_blocking=True)
    y = torch.randint(0, 1000, (batch_size,)).cuda(non_blocking=True)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
