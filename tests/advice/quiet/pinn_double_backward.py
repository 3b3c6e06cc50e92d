import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

u = nn.Sequential(nn.Linear(2, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)).to(device)

# --- cell
opt = torch.optim.Adam(u.parameters(), lr=1e-3)
for it in range(2):
    xt = torch.rand(2048, 2, device=device, requires_grad=True)
    y = u(xt)
    g = torch.autograd.grad(y, xt, torch.ones_like(y), create_graph=True, retain_graph=True)[0]
    u_x, u_t = g[:, :1], g[:, 1:]
    u_xx = torch.autograd.grad(u_x, xt, torch.ones_like(u_x), create_graph=True)[0][:, :1]
    f = u_t + y * u_x - 0.01 * u_xx
    loss = f.pow(2).mean() + u(torch.rand(512, 2, device=device)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
