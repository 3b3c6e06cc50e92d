import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

points = torch.randn(5000, 16).to(device)
centers = points[:8].clone()

# --- cell
for _ in range(10):
    labels = torch.cdist(points, centers).argmin(1)
    centers = torch.stack([points[labels == k].mean(0) for k in range(8)])
inertia = (points - centers[labels]).pow(2).sum().item()
