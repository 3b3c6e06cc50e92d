import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(1024, 3, 32, 32), torch.randint(0, 10, (1024,))), batch_size=128)
def one_hot(x, classes, on=1.0, off=0.0):
    return torch.full((x.size(0), classes), off, device=x.device).scatter_(1, x.long().view(-1, 1), on)

# --- cell
losses = []
for x, y in loader:
    x, y = x.to(device), y.to(device)
    lam = 0.7
    target = one_hot(y, 10, 0.91, 0.01) * lam + one_hot(y.flip(0), 10, 0.91, 0.01) * (1 - lam)
    x = x * lam + x.flip(0) * (1 - lam)
    loss = torch.sum(-target * F.log_softmax(model(x), dim=-1), dim=-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
