import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = [(torch.randn(128, 64), torch.randint(0, 10, (128,))) for _ in range(4)]

# --- cell
best, best_state = float("inf"), None
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val = sum(F.cross_entropy(model(x.to(device)), y.to(device)).item() for x, y in loader)
    if val < best:
        best, best_state = val, {k: v.cpu().clone() for k, v in model.state_dict().items()}
model.load_state_dict(best_state)
