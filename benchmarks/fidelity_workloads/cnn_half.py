# Inference of a half precision convolutional network in channels_last; the answers are kept.
import torch
from torch import nn

batch_size = 32
image = 224
width = 64
batches = 3

model = nn.Sequential(
    nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
    nn.MaxPool2d(3, 2, 1),
    nn.Conv2d(width, 2 * width, 3, 1, 1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.1),
    nn.Conv2d(2 * width, 4 * width, 3, 2, 1, groups=4), nn.BatchNorm2d(4 * width), nn.PReLU(),
    nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.Conv2d(4 * width, 8 * width, 3, 2, 2, dilation=2), nn.ELU(),
    nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(8 * width * 4, 1000),
)  # fmt: skip
model = model.half().cuda().to(memory_format=torch.channels_last).eval()
answers = []
with torch.inference_mode():
    for _ in range(batches):
        images = torch.rand(batch_size, 3, image, image, device="cuda", dtype=torch.float16)
        scores = model(images.contiguous(memory_format=torch.channels_last)).float().softmax(-1)
        best, indices = scores.topk(5, dim=-1)
        answers.append((best.cpu(), indices.cpu()))
