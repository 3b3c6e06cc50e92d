import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
import copy

q = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 6)).to(device)
target = copy.deepcopy(q)
opt = torch.optim.RMSprop(q.parameters(), lr=1e-3)
s, s2 = torch.randn(2048, 128, device=device), torch.randn(2048, 128, device=device)
a = torch.randint(0, 6, (2048, 1), device=device)
r = torch.rand(2048, device=device)

# --- cell
for step in range(3):
    with torch.no_grad():
        goal = r + 0.99 * target(s2).max(1).values
    value = q(s).gather(1, a).squeeze(1)
    loss = F.smooth_l1_loss(value, goal)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 10.0)
    opt.step()
target.load_state_dict(q.state_dict())
