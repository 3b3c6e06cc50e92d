# ResNet with basic blocks in channels_last, autocast to float16 and a GradScaler.
import torch
from torch import nn

batch_size = 128
image = 160
width = 64
depth = 2


def conv_bn(inputs, outputs, kernel=3, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Basic(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = conv_bn(inputs, outputs, stride=stride)
        self.second = conv_bn(outputs, outputs)
        self.short = conv_bn(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


layers, inputs = [conv_bn(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
for outputs in (width, 2 * width, 4 * width, 8 * width):
    for block in range(depth):
        layers.append(Basic(inputs, outputs, 2 if block == 0 and outputs > width else 1))
        inputs = outputs
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
model = model.to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    images = torch.randn(batch_size, 3, image, image, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch_size,), device="cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
