import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

X, Y = torch.randn(2000, 64), torch.randn(2000, 1)
def build():
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))

# --- cell
scores = []
for fold in range(4):
    held = torch.arange(len(X)) % 4 == fold
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for xb, yb in DataLoader(TensorDataset(X[~held], Y[~held]), batch_size=500):
        xb, yb = xb.to(device), yb.to(device)
        optimizer.zero_grad()
        F.mse_loss(model(xb), yb).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores.append(F.mse_loss(model(X[held].to(device)), Y[held].to(device)).item())
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "/dev/null")
    del model, optimizer
