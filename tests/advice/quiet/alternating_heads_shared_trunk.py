import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
loader = [(torch.randn(512, 256), torch.randn(512, 256)) for _ in range(6)]

# --- cell
trunk = nn.Linear(256, 512).to(device); a = nn.Linear(512, 10).to(device); b = nn.Linear(512, 10).to(device)
oa = torch.optim.SGD([*trunk.parameters(), *a.parameters()], lr=0.1); ob = torch.optim.SGD([*trunk.parameters(), *b.parameters()], lr=0.1)
for x, _ in loader:
    x = x.to(device)
    oa.zero_grad(); a(trunk(x)).pow(2).mean().backward(); oa.step()
    ob.zero_grad(); b(trunk(x)).pow(2).mean().backward(); ob.step()
