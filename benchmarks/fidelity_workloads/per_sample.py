# Gradients of each sample by torch.func: vmap over grad, float32; then Jacobians.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, jacrev, vmap

batch_size = 256
width = 128

model = nn.Sequential(
    nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
).cuda()
params = {k: v.detach() for k, v in model.named_parameters()}
x = torch.randn(batch_size, 64, device="cuda")
y = torch.randint(0, 10, (batch_size,), device="cuda")


def loss(params, sample, target):
    logits = functional_call(model, params, (sample.unsqueeze(0),))
    return F.cross_entropy(logits, target.unsqueeze(0))


for step in range(3):
    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample.values()]).norm(dim=0)
    factor = (1.0 / (norms + 1e-6)).clamp(max=1)
    for name in params:
        g = torch.einsum("b,b...->...", factor, per_sample[name]) / batch_size
        params[name] = params[name] - 0.1 * g
    del per_sample
jacobian = vmap(jacrev(lambda sample: functional_call(model, params, (sample,))))(x)
