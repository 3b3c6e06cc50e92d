import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class SAGE(nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(i, h), nn.Linear(h, o)])
        self.near = nn.ModuleList([nn.Linear(i, h), nn.Linear(h, o)])
    def forward(self, x, edges):
        for n, (own, near) in enumerate(zip(self.own, self.near)):
            total = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
            degree = torch.zeros(len(x), 1, device=x.device).index_add_(0, edges[1], torch.ones(edges.shape[1], 1, device=x.device))
            x = own(x) + near(total / degree.clamp(min=1))
            if n == 0:
                x = F.dropout(F.relu(x), 0.5, self.training)
        return x
model = SAGE(64, 128, 16).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
features = torch.randn(5000, 64)
labels = torch.randint(0, 16, (5000,))

# --- cell
def batches(n):
    for _ in range(n):
        nodes = torch.randint(0, 5000, (1000,))
        yield features[nodes], labels[nodes], torch.randint(0, 1000, (2, 8000))
model.train()
total = correct = 0
for x, y, edges in batches(10):
    x, y, edges = x.to(device), y.to(device), edges.to(device)
    optimizer.zero_grad()
    out = model(x, edges)
    loss = F.cross_entropy(out[:256], y[:256])
    loss.backward()
    optimizer.step()
    total += 256
    correct += int((out[:256].argmax(dim=-1) == y[:256]).sum())
accuracy = correct / total
