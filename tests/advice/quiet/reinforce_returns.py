import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
policy = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 4)).to(device)
opt = torch.optim.Adam(policy.parameters(), lr=1e-3)

# --- cell
log_probs, rewards = [], []
state = torch.randn(1024, 128, device=device)
for t in range(8):
    dist = torch.distributions.Categorical(logits=policy(state))
    action = dist.sample()
    log_probs.append(dist.log_prob(action))
    rewards.append(torch.rand(1024, device=device))
    state = state + 0.1 * torch.randn_like(state)
returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
loss = -(torch.stack(log_probs) * returns).mean()
opt.zero_grad()
loss.backward()
opt.step()
opt.zero_grad()
