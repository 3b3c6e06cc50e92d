# A graph network: messages added up by index_add and scatter, float32; SGD with Nesterov.
import torch
import torch.nn as nn

nodes = 20000
edges = 200000
width = 64


class Convolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.message = nn.Linear(2 * inputs, outputs)
        self.own = nn.Linear(inputs, outputs)

    def forward(self, x, source, target):
        message = torch.relu(self.message(torch.cat([x[source], x[target]], dim=-1)))
        total = torch.zeros(x.size(0), message.size(1), device=x.device)
        total.index_add_(0, target, message)
        count = torch.zeros(x.size(0), device=x.device)
        count.scatter_add_(0, target, torch.ones_like(target, dtype=torch.float))
        return self.own(x) + total / count.clamp(min=1).unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, width)
        self.score = nn.Parameter(torch.randn(heads, 2 * width // heads))

    def forward(self, x, source, target):
        h = self.project(x).view(x.size(0), self.heads, -1)
        pairs = torch.cat([h[source], h[target]], dim=-1)
        score = nn.functional.leaky_relu((pairs * self.score).sum(-1), 0.2)
        index = target.unsqueeze(1).expand_as(score)
        highest = torch.full((x.size(0), self.heads), -1e9, device=x.device)
        highest = highest.scatter_reduce(0, index, score, "amax")
        weight = torch.exp(score - highest[target])
        norm = torch.zeros_like(highest).scatter_add(0, index, weight)
        weight = weight / (norm[target] + 1e-9)
        out = torch.zeros_like(h).index_add(0, target, h[source] * weight.unsqueeze(-1))
        return out.flatten(1)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = Convolution(32, width)
        self.second = Attention(width)
        self.last = nn.Linear(width, 10)

    def forward(self, x, source, target):
        x = torch.relu(self.first(x, source, target))
        return self.last(torch.nn.functional.elu(self.second(x, source, target)))


device = torch.device("cuda")
source, target = torch.randint(0, nodes, (2, edges), device=device)
x = torch.randn(nodes, 32, device=device)
y = torch.randint(0, 10, (nodes,), device=device)
model = Net(width).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for epoch in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x, source, target), y)
    loss.backward()
    optimizer.step()
