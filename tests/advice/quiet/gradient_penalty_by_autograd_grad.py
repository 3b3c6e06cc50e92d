import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
criterion = nn.MSELoss()
loader = [(torch.randn(512, 256), torch.randn(512, 256)) for _ in range(6)]

# --- cell
for x, y in list(loader)[:5]:
    x, y = x.to(device), y.to(device)
    loss = criterion(net(x), y)
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    total = loss + 0.1 * sum(g.pow(2).sum() for g in grads)
    optimizer.zero_grad(); total.backward(); optimizer.step()
