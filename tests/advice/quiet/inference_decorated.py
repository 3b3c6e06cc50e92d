import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(2048, 512, device=device)
y = torch.randint(0, 10, (2048,), device=device)


# --- cell
@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    hits = 0
    for xb, yb in zip(x.split(256), y.split(256)):
        hits += (model(xb).argmax(1) == yb).sum().item()
    return hits / len(y)


evaluate(model, x, y)
