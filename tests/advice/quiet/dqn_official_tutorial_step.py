import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

Transition = collections.namedtuple("Transition", ("state", "action", "next_state", "reward"))
class ReplayMemory:
    def __init__(self, capacity): self.memory = collections.deque([], maxlen=capacity)
    def push(self, *args): self.memory.append(Transition(*args))
    def sample(self, n): return [self.memory[i] for i in torch.randint(0, len(self.memory), (n,))]
    def __len__(self): return len(self.memory)
class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    def forward(self, x): return self.net(x)
policy_net, target_net = DQN().to(device), DQN().to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)
memory = ReplayMemory(10000)

# --- cell
def optimize_model():
    if len(memory) < 64:
        return
    batch = Transition(*zip(*memory.sample(64)))
    states, actions = torch.cat(batch.state), torch.cat(batch.action)
    rewards, nexts = torch.cat(batch.reward), torch.cat(batch.next_state)
    q = policy_net(states).gather(1, actions)
    with torch.no_grad():
        next_values = target_net(nexts).max(1).values
    loss = nn.SmoothL1Loss()(q, (next_values * 0.99 + rewards).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
state = torch.randn(1, 4, device=device)
for t in range(120):
    with torch.no_grad():
        action = policy_net(state).max(1).indices.view(1, 1)
    next_state = torch.tanh(state + 0.1 * torch.randn_like(state))
    memory.push(state, action, next_state, torch.rand(1, device=device))
    state = next_state
    optimize_model()
    sd, td = policy_net.state_dict(), target_net.state_dict()
    for key in sd:
        td[key] = sd[key] * 0.005 + td[key] * 0.995
    target_net.load_state_dict(td)
