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
for step in range(2):
    opt_d.zero_grad()
    fake = G(torch.randn(1024, 64, device=device)).detach()
    alpha = torch.rand(1024, 1, device=device)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = D(mixed)
    (grads,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)
    penalty = ((grads.norm(2, dim=1) - 1) ** 2).mean()
    loss = D(fake).mean() - D(real).mean() + 10 * penalty
    loss.backward()
    opt_d.step()
