import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

netG = nn.Sequential(nn.ConvTranspose2d(32, 32, 4), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()).to(device)
netD = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4), nn.Sigmoid()).to(device)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCELoss()
dataloader = [torch.rand(16, 3, 8, 8) for _ in range(3)]

# --- cell
G_losses, D_losses = [], []
for real in dataloader:
    netD.zero_grad()
    real = real.to(device)
    label = torch.ones(len(real), device=device)
    errD_real = criterion(netD(real).view(-1), label)
    errD_real.backward()
    fake = netG(torch.randn(len(real), 32, 1, 1, device=device))
    errD_fake = criterion(netD(fake.detach()).view(-1), torch.zeros_like(label))
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
    G_losses.append(errG.item())
    D_losses.append((errD_real + errD_fake).item())
