# Convolutions in one and three dimensions, with instance norm and weight norm; SGD.
import torch
from torch import nn

batch_size = 16
samples = 16000
frames = 16
size = 56
width = 32

audio = nn.Sequential(
    nn.Conv1d(1, width, 80, 4), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(4),
    torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(width, 2 * width, 3, dilation=2)),
    nn.InstanceNorm1d(2 * width, affine=True), nn.GLU(1), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
    nn.Linear(width, 35),
).cuda()  # fmt: skip
video = nn.Sequential(
    nn.Conv3d(3, width, 3, (1, 2, 2), 1), nn.BatchNorm3d(width), nn.ReLU(inplace=True),
    nn.MaxPool3d(2), nn.Conv3d(width, 2 * width, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2 * width, 35),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD([*audio.parameters(), *video.parameters()], lr=0.1)
for _ in range(2):
    sound = torch.randn(batch_size, 1, samples, device="cuda")
    clip = torch.randn(batch_size, 3, frames, size, size, device="cuda")
    label = torch.randint(0, 35, (batch_size,), device="cuda")
    loss = nn.functional.nll_loss((audio(sound) + video(clip)).log_softmax(1), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
