import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
from torch.func import functional_call

net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
meta = torch.optim.Adam(net.parameters(), lr=1e-3)
tasks = [
    (torch.randn(512, 256, device=device), torch.randn(512, 1, device=device)) for _ in range(3)
]

# --- cell
meta.zero_grad()
meta_loss = 0.0
for xs, ys in tasks:
    params = dict(net.named_parameters())
    for _ in range(2):
        inner = F.mse_loss(functional_call(net, params, (xs,)), ys)
        grads = torch.autograd.grad(inner, tuple(params.values()), create_graph=True)
        params = {k: p - 0.01 * g for (k, p), g in zip(params.items(), grads)}
    meta_loss = meta_loss + F.mse_loss(functional_call(net, params, (xs,)), ys)
meta_loss.backward()
meta.step()
meta.zero_grad()
