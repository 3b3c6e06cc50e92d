import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device).eval()
x = torch.randn(32, 64, device=device)

# --- cell
def integrated(model, x, target, steps=50):
    total = torch.zeros_like(x)
    for alpha in torch.linspace(0, 1, steps):
        point = (alpha.item() * x).requires_grad_()
        score = model(point)[:, target].sum()
        grad, = torch.autograd.grad(score, point)
        total += grad
    return total / steps * x

attribution = integrated(net, x, 3).cpu()
