# A DCGAN: two networks, two Adams, three backward passes a step.
import torch
from torch import nn

batch_size = 128
latent = 100
width = 64

generator = nn.Sequential(
    nn.ConvTranspose2d(latent, width * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(width * 8),
    nn.ReLU(True),
    nn.ConvTranspose2d(width * 8, width * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(width * 4),
    nn.ReLU(True),
    nn.ConvTranspose2d(width * 4, width * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(width * 2, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width),
    nn.ReLU(True),
    nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh(),
).cuda()  # fmt: skip
discriminator = nn.Sequential(
    nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(width, width * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(width * 2, width * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(width * 4),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(width * 4, 1, 8, 1, 0, bias=False), nn.Flatten(0),
).cuda()  # fmt: skip
criterion = nn.BCEWithLogitsLoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
ones, zeros = torch.ones(batch_size, device="cuda"), torch.zeros(batch_size, device="cuda")
for _ in range(2):
    real = torch.rand(batch_size, 3, 64, 64, device="cuda") * 2 - 1
    fake = generator(torch.randn(batch_size, latent, 1, 1, device="cuda"))

    discriminator.zero_grad()
    criterion(discriminator(real), ones).backward()
    criterion(discriminator(fake.detach()), zeros).backward()
    optimizer_d.step()

    generator.zero_grad()
    criterion(discriminator(fake), ones).backward()
    optimizer_g.step()
