import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
G = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh()).to(device)
D = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(device)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
real = torch.randn(1024, 784, device=device)
bce = nn.BCEWithLogitsLoss()

# --- cell
ones, zeros = torch.ones(1024, 1, device=device), torch.zeros(1024, 1, device=device)
for step in range(3):
    z = torch.randn(1024, 64, device=device)
    fake = G(z)
    opt_d.zero_grad()
    d_loss = bce(D(real), ones) + bce(D(fake.detach()), zeros)
    d_loss.backward()
    opt_d.step()
    opt_g.zero_grad()
    g_loss = bce(D(fake), ones)
    g_loss.backward()
    opt_g.step()
print(d_loss.item(), g_loss.item())
