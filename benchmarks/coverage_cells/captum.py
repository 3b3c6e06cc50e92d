# %% integrated gradients | https://captum.ai/
import torch
from captum.attr import IntegratedGradients
from torch import nn

model = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 2)).cuda().eval()
ig = IntegratedGradients(model)
x = torch.rand(4, 300, device="cuda")
attributions, delta = ig.attribute(x, torch.zeros_like(x), target=0, return_convergence_delta=True)
