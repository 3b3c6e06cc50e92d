import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
xs, ys = torch.randn(32, 256, device=device), torch.randint(0, 10, (32,), device=device)

# --- cell
from torch.func import functional_call, vmap, grad
params = {k: v.detach() for k, v in model.named_parameters()}
def compute_loss(params, sample, target):
    return F.cross_entropy(functional_call(model, params, (sample.unsqueeze(0),)), target.unsqueeze(0))
ft = vmap(grad(compute_loss), in_dims=(None, 0, 0))
per_sample = ft(params, xs, ys)
norms = torch.sqrt(sum(g.flatten(1).pow(2).sum(1) for g in per_sample.values()))
print(norms.mean())
