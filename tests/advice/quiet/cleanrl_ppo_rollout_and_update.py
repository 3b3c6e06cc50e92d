import numpy as np, torch
from torch import nn
from torch.distributions.categorical import Categorical
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    def get_value(self, x):
        return self.critic(x)
    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)
agent = Agent().to("cuda")
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
num_steps, num_envs = 32, 8
# --- cell
obs = torch.zeros((num_steps, num_envs, 8)).to("cuda")
actions = torch.zeros((num_steps, num_envs)).to("cuda")
logprobs = torch.zeros((num_steps, num_envs)).to("cuda")
rewards = torch.zeros((num_steps, num_envs)).to("cuda")
values = torch.zeros((num_steps, num_envs)).to("cuda")
next_obs = torch.Tensor(np.random.randn(num_envs, 8)).to("cuda")
for step in range(num_steps):
    obs[step] = next_obs
    with torch.no_grad():
        action, logprob, _, value = agent.get_action_and_value(next_obs)
        values[step] = value.flatten()
    actions[step] = action
    logprobs[step] = logprob
    rewards[step] = torch.tensor(np.random.randn(num_envs)).to("cuda").view(-1)
    next_obs = torch.Tensor(np.random.randn(num_envs, 8)).to("cuda")
with torch.no_grad():
    next_value = agent.get_value(next_obs).reshape(1, -1)
    advantages = torch.zeros_like(rewards).to("cuda")
    lastgaelam = 0
    for t in reversed(range(num_steps)):
        nextvalues = next_value if t == num_steps - 1 else values[t + 1]
        delta = rewards[t] + 0.99 * nextvalues - values[t]
        advantages[t] = lastgaelam = delta + 0.99 * 0.95 * lastgaelam
    returns = advantages + values
b_obs, b_logprobs, b_actions = obs.reshape(-1, 8), logprobs.reshape(-1), actions.reshape(-1)
b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
b_inds = np.arange(num_steps * num_envs)
clipfracs = []
for epoch in range(2):
    np.random.shuffle(b_inds)
    for start in range(0, 256, 64):
        mb_inds = b_inds[start : start + 64]
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions.long()[mb_inds])
        logratio = newlogprob - b_logprobs[mb_inds]
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfracs += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
        pg_loss = torch.max(-b_advantages[mb_inds] * ratio, -b_advantages[mb_inds] * ratio.clamp(0.8, 1.2)).mean()
        v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
        loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
