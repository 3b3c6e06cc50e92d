import random, torch, numpy as np
from torch import nn
import torch.nn.functional as F
q_network = nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)).to("cuda")
target_network = nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)).to("cuda")
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
rb = [(np.random.randn(4), np.random.randn(4), random.randrange(2), random.random(), 0.0) for _ in range(500)]
# --- cell
for global_step in range(30):
    state = np.random.randn(1, 4)
    q_values = q_network(torch.Tensor(state).to("cuda"))
    action = torch.argmax(q_values, dim=1).cpu().numpy()
    batch = random.sample(rb, 128)
    observations, next_observations, acts, rews, dones = (torch.tensor(np.array(c), dtype=torch.float32, device="cuda") for c in zip(*batch))
    with torch.no_grad():
        target_max, _ = target_network(next_observations).max(dim=1)
        td_target = rews + 0.99 * target_max * (1 - dones)
    old_val = q_network(observations).gather(1, acts.long()[:, None]).squeeze()
    loss = F.mse_loss(td_target, old_val)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if global_step % 10 == 0:
        for target_param, q_param in zip(target_network.parameters(), q_network.parameters()):
            target_param.data.copy_(0.5 * q_param.data + 0.5 * target_param.data)
