import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

# --- cell
def gp(x, y, length=0.2, noise=1e-3):
    K = torch.exp(-0.5 * ((x[:, None] - x[None]) / length) ** 2)
    K.diagonal().add_(noise)
    L = torch.linalg.cholesky(K)
    return torch.cholesky_solve(y[:, None], L)
xs = torch.linspace(0, 1, 4000, device=device)
gp(xs, torch.sin(6 * xs))
