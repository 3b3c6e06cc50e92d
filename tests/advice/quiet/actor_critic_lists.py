import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.action_head, self.value_head = nn.Linear(256, 2048), nn.Linear(2048, 4), nn.Linear(2048, 1)
        self.saved_actions, self.rewards = [], []
    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)
policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-2)

# --- cell
def select_action(state):
    probs, value = policy(state)
    m = torch.distributions.Categorical(probs)
    action = m.sample()
    policy.saved_actions.append((m.log_prob(action), value))
    return action

def finish_episode():
    R, returns = torch.zeros(256, device=device), []
    for r in policy.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    policy_losses, value_losses = [], []
    for (log_prob, value), R in zip(policy.saved_actions, returns):
        policy_losses.append(-(log_prob * (R - value.squeeze(1).detach())).mean())
        value_losses.append(F.smooth_l1_loss(value.squeeze(1), R))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_actions[:]

for episode in range(2):
    state = torch.randn(256, 256, device=device)
    for t in range(8):
        select_action(state)
        state = torch.randn(256, 256, device=device)
        policy.rewards.append(torch.randn(256, device=device))
    finish_episode()
