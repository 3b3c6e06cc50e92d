# A WaveNet: dilated causal convolutions with weight norm over sound, float32; RAdam.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

batch_size = 4
samples = 8000
channels = 64


class Layer(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.pad = dilation
        self.gate = weight_norm(nn.Conv1d(channels, 2 * channels, 2, dilation=dilation))
        self.skip = nn.Conv1d(channels, channels, 1)
        self.residual = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        a, b = self.gate(F.pad(x, (self.pad, 0))).chunk(2, dim=1)
        z = torch.tanh(a) * torch.sigmoid(b)
        return x + self.residual(z), self.skip(z)


class WaveNet(nn.Module):
    def __init__(self, channels, levels=256, depth=8):
        super().__init__()
        self.embed = nn.Embedding(levels, channels)
        self.layers = nn.ModuleList(Layer(channels, 2**i) for i in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(channels, levels, 1))

    def forward(self, codes):
        x = self.embed(codes).transpose(1, 2)
        skips = 0
        for layer in self.layers:
            x, skip = layer(x)
            skips = skips + skip
        return self.head(skips)


model = WaveNet(channels).to("cuda")
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
codes = torch.randint(0, 256, (batch_size, samples), device="cuda")
for step in range(3):
    logits = model(codes[:, :-1])
    loss = F.cross_entropy(logits, codes[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
