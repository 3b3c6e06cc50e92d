import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 1))
        self.actor = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 8))
    def get_value(self, x):
        return self.critic(x)
    def get_action_and_value(self, x, action=None):
        probs = torch.distributions.Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)
agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)

# --- cell
num_steps, num_envs = 16, 128
obs = torch.zeros((num_steps, num_envs, 512), device=device)
actions = torch.zeros((num_steps, num_envs), device=device)
logprobs = torch.zeros((num_steps, num_envs), device=device)
rewards = torch.zeros((num_steps, num_envs), device=device)
values = torch.zeros((num_steps, num_envs), device=device)
next_obs = torch.randn(num_envs, 512, device=device)
for step in range(num_steps):
    obs[step] = next_obs
    with torch.no_grad():
        action, logprob, _, value = agent.get_action_and_value(next_obs)
        values[step] = value.flatten()
    actions[step] = action
    logprobs[step] = logprob
    next_obs = torch.randn(num_envs, 512, device=device)
    rewards[step] = torch.randn(num_envs, device=device)
with torch.no_grad():
    next_value = agent.get_value(next_obs).reshape(1, -1)
    advantages = torch.zeros_like(rewards)
    lastgaelam = 0
    for t in reversed(range(num_steps)):
        nextvalues = next_value if t == num_steps - 1 else values[t + 1]
        delta = rewards[t] + 0.99 * nextvalues - values[t]
        advantages[t] = lastgaelam = delta + 0.99 * 0.95 * lastgaelam
    returns = advantages + values
b_obs, b_logprobs, b_actions = obs.reshape(-1, 512), logprobs.reshape(-1), actions.reshape(-1)
b_adv, b_returns, b_values = advantages.reshape(-1), returns.reshape(-1), values.reshape(-1)
clipfracs = []
for epoch in range(2):
    b_inds = torch.randperm(len(b_obs))
    for start in range(0, len(b_obs), 1024):
        mb = b_inds[start:start + 1024]
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb])
        logratio = newlogprob - b_logprobs[mb]
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfracs += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
        pg_loss = torch.max(-b_adv[mb] * ratio, -b_adv[mb] * torch.clamp(ratio, 0.8, 1.2)).mean()
        v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
        loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
