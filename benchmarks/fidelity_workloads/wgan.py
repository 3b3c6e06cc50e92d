# A WGAN with gradient penalty, spectral and instance norm, float32; Adam.
import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm

batch_size = 32
size = 32
width = 64

generator = nn.Sequential(
    nn.ConvTranspose2d(100, 4 * width, 4),
    nn.BatchNorm2d(4 * width),
    nn.ReLU(True),
    nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
    nn.BatchNorm2d(2 * width),
    nn.ReLU(True),
    nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
    nn.BatchNorm2d(width),
    nn.ReLU(True),
    nn.ConvTranspose2d(width, 3, 4, 2, 1),
    nn.Tanh(),
).cuda()
critic = nn.Sequential(
    spectral_norm(nn.Conv2d(3, width, 4, 2, 1)),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(width, 2 * width, 4, 2, 1),
    nn.InstanceNorm2d(2 * width, affine=True),
    nn.LeakyReLU(0.2),
    nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
    nn.LayerNorm([4 * width, 4, 4]),
    nn.LeakyReLU(0.2),
    nn.Conv2d(4 * width, 1, 4),
    nn.Flatten(),
).cuda()
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
for step in range(2):
    for _ in range(2):
        real = torch.randn(batch_size, 3, size, size, device="cuda")
        fake = generator(torch.randn(batch_size, 100, 1, 1, device="cuda")).detach()
        mix = torch.rand(batch_size, 1, 1, 1, device="cuda")
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        score = critic(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
        penalty = ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    of_generator.zero_grad()
    score = -critic(generator(torch.randn(batch_size, 100, 1, 1, device="cuda"))).mean()
    score.backward()
    of_generator.step()
