# %% ppo update | https://github.com/vwxyzjn/cleanrl/blob/master/cleanrl/ppo.py
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
num_steps, num_envs, batch = 128, 8, 1024


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 4)).to(device)
actions = torch.zeros((num_steps, num_envs)).to(device)
logprobs, values = torch.zeros_like(actions), torch.zeros_like(actions)
for step in range(num_steps):
    obs[step] = torch.Tensor(np.random.randn(num_envs, 4)).to(device)
    with torch.no_grad():
        action, logprob, _, value = agent.get_action_and_value(obs[step])
        values[step] = value.flatten()
    actions[step], logprobs[step] = action, logprob
    action.cpu().numpy()
inds = np.arange(batch)
b_obs, b_actions, b_logprobs = obs.reshape(-1, 4), actions.reshape(-1), logprobs.reshape(-1)
advantages = torch.randn(batch, device=device)
for epoch in range(4):
    np.random.shuffle(inds)
    for start in range(0, batch, 256):
        mb = inds[start : start + 256]
        _, new, entropy, value = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb])
        ratio = (new - b_logprobs[mb]).exp()
        clipped = torch.clamp(ratio, 0.8, 1.2)
        loss = torch.max(-advantages[mb] * ratio, -advantages[mb] * clipped).mean()
        loss = loss - 0.01 * entropy.mean() + 0.5 * value.square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()

# %% dqn update | https://github.com/vwxyzjn/cleanrl/blob/master/cleanrl/dqn.py
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def network():
    return nn.Sequential(
        nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
    )


q_network, target_network = network().cuda(), network().cuda()
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
for step in range(30):
    obs = torch.Tensor(np.random.randn(128, 4)).cuda()
    actions = torch.randint(0, 2, (128, 1)).cuda()
    with torch.no_grad():
        target_max, _ = target_network(obs).max(dim=1)
        td_target = torch.randn(128).cuda() + 0.99 * target_max
    loss = F.mse_loss(td_target, q_network(obs).gather(1, actions).squeeze())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for target, own in zip(target_network.parameters(), q_network.parameters()):
        target.data.copy_(own.data + 0.0 * target.data)
