import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, o)).to(device)

actor, qf, qf_target = mlp(17, 6), mlp(23, 1), mlp(23, 1)
qf_target.load_state_dict(qf.state_dict())
q_optimizer = torch.optim.Adam(qf.parameters(), lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
buffer = [tuple(torch.randn(256, n) for n in (17, 6, 1, 17)) for _ in range(4)]

# --- cell
for observations, actions, rewards, following in buffer:
    observations, actions, rewards, following = (
        t.to(device) for t in (observations, actions, rewards, following)
    )
    with torch.no_grad():
        action = torch.tanh(actor(following))
        target = rewards + 0.99 * qf_target(torch.cat([following, action], 1))
    qf_loss = F.mse_loss(qf(torch.cat([observations, actions], 1)), target)
    q_optimizer.zero_grad()
    qf_loss.backward()
    q_optimizer.step()
    actor_loss = -qf(torch.cat([observations, torch.tanh(actor(observations))], 1)).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    with torch.no_grad():
        for p, q in zip(qf.parameters(), qf_target.parameters()):
            q.mul_(0.995).add_(p, alpha=0.005)
