import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = [(torch.randn(128, 64), torch.randint(0, 10, (128,))) for _ in range(4)]

# --- cell
for x, y in loader:
    x, y = x.to(device), y.to(device)
    share = 0.3
    order = torch.randperm(len(x), device=device)
    out = model(share * x + (1 - share) * x[order])
    loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
