# Actor and critic learn by PPO over random parts of a batch, float32; fused Adam.
import torch
import torch.nn as nn
from torch.distributions import Categorical

batch_size = 4096
observation = 128

body = nn.Sequential(nn.Linear(observation, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()).cuda()
actor, critic = nn.Linear(256, 16).cuda(), nn.Linear(256, 1).cuda()
parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5, fused=True)
x = torch.randn(batch_size, observation, device="cuda")
with torch.no_grad():
    policy = Categorical(logits=actor(body(x)), validate_args=False)
    action = policy.sample()
    old = policy.log_prob(action)
advantage = torch.randn(batch_size, device="cuda")
for epoch in range(3):
    for index in torch.randperm(batch_size, device="cuda").split(1024):
        h = body(x[index])
        policy = Categorical(logits=actor(h), validate_args=False)
        ratio = (policy.log_prob(action[index]) - old[index]).exp()
        a = advantage[index]
        a = (a - a.mean()) / (a.std() + 1e-8)
        loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
        loss = loss + 0.5 * (critic(h).squeeze() - a).pow(2).mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
