# Gradient accumulation with momentum, Nesterov and clipping of the gradients' norm.
import torch
from torch import nn

batch_size = 512
hidden = 2048
depth = 6
accumulate = 4
device = torch.device("cuda")

layers = [nn.Linear(512, hidden)]
for _ in range(depth):
    layers += [nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, hidden)]
model = nn.Sequential(*layers, nn.Linear(hidden, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for step in range(2):
    optimizer.zero_grad()
    for _ in range(accumulate):
        x = torch.randn(batch_size, 512, device=device)
        target = torch.randn(batch_size, 1, device=device)
        loss = nn.functional.mse_loss(model(x), target) / accumulate
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
