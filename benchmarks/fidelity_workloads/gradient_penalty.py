# A Wasserstein critic with a gradient penalty: a backward pass through a backward pass.
import torch
from torch import nn

batch_size = 512
hidden = 1024

critic = nn.Sequential(
    nn.Linear(784, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
).cuda()
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
for _ in range(3):
    real, fake = torch.rand(2, batch_size, 784, device="cuda")
    mix = torch.rand(batch_size, 1, device="cuda")
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    scores = critic(between)
    (slopes,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    penalty = ((slopes.norm(2, dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
