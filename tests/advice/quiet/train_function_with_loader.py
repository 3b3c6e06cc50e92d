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
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=512, shuffle=True)


# --- cell
def train_epoch(model, loader, opt):
    model.train()
    total = 0.0
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        total += loss.item() * len(xb)
    return total / len(loader.dataset)


for epoch in range(2):
    print(train_epoch(model, loader, opt))
