import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

G = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
D = nn.Sequential(nn.Linear(256, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(device)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-4, betas=(0.5, 0.9))
loader = DataLoader(TensorDataset(torch.randn(2048, 256)), batch_size=256)

# --- cell
def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1, device=device)
    inter = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = D(inter)
    grad, = torch.autograd.grad(score, inter, torch.ones_like(score), create_graph=True, retain_graph=True)
    return ((grad.norm(2, dim=1) - 1) ** 2).mean()
for i, (real,) in enumerate(loader):
    real = real.to(device)
    z = torch.randn(real.size(0), 64, device=device)
    with torch.no_grad():
        fake = G(z)
    d_loss = D(fake).mean() - D(real).mean() + 10 * gradient_penalty(real, fake)
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    if i % 5 == 0:
        g_loss = -D(G(z)).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
