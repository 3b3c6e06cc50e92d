import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

train_x, train_y = torch.randint(0, 255, (20000, 784), dtype=torch.uint8), torch.randint(0, 10, (20000,))
model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# --- cell
gx, gy = train_x.to(device), train_y.to(device)   # fits: 15 MB
for epoch in range(1):
    perm = torch.randperm(len(gx), device=device)
    for idx in perm.split(5000):
        xb = gx[idx].float().div_(255)
        loss = F.cross_entropy(model(xb), gy[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
