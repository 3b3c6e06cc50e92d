import torch
from torch import nn


class Average:
    def __init__(self, model, decay=0.999):
        self.decay = torch.tensor(decay, device="cuda")
        self.shadow = {name: weight.clone() for name, weight in model.named_parameters()}

    def update(self, model):
        for name, weight in model.named_parameters():
            self.shadow[name] = self.decay * self.shadow[name] + (1 - self.decay) * weight


model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).cuda()
average = Average(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
# --- cell
for step in range(30):
    x = torch.randn(64, 512, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
