import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

x = torch.linspace(-math.pi, math.pi, 2000, device=device)
y = torch.sin(x)
a, b, c, d = (torch.randn((), device=device, requires_grad=True) for _ in range(4))

# --- cell
rate = 1e-6
for t in range(200):
    y_pred = a + b * x + c * x ** 2 + d * x ** 3
    loss = (y_pred - y).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        for p in (a, b, c, d):
            p -= rate * p.grad
            p.grad = None
print(loss.item())
