import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

def q(): return nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
policy, target = q().to(device), q().to(device)
target.load_state_dict(policy.state_dict())
opt = torch.optim.AdamW(policy.parameters(), lr=1e-4, amsgrad=True)
memory = collections.deque(maxlen=2000)
for _ in range(1000):
    memory.append((torch.randn(16), torch.randint(0, 4, (1,)), torch.randn(16), torch.rand(1)))

# --- cell
import random
for step in range(20):
    batch = random.sample(memory, 128)
    s, a, s2, r = (torch.stack(each).to(device) for each in zip(*batch))
    value = policy(s).gather(1, a)
    with torch.no_grad():
        wanted = r + 0.99 * target(s2).max(1, keepdim=True).values
    loss = F.smooth_l1_loss(value, wanted)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    opt.step()
    new, old = policy.state_dict(), target.state_dict()
    for key in new:
        old[key] = new[key] * 0.005 + old[key] * 0.995
    target.load_state_dict(old)
