import torch
from torch import nn
torch.manual_seed(0)
# --- cell
class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)).cuda()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.log_probs, self.rewards = [], []

    def act(self, state):
        distribution = torch.distributions.Categorical(logits=self.policy(state))
        action = distribution.sample()
        self.log_probs.append(distribution.log_prob(action))
        return action.item()

    def update(self):
        returns, total = [], 0.0
        for reward in reversed(self.rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        weights = torch.tensor(returns, device="cuda")
        loss = -(torch.stack(self.log_probs).squeeze(-1) * weights).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.log_probs.clear()
        self.rewards.clear()

agent = Agent()
for episode in range(4):
    for t in range(40):
        action = agent.act(torch.randn(1, 4, device="cuda"))
        agent.rewards.append(float(action))
    agent.update()
print("done")
