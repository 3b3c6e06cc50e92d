import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(2048, 512, device=device)
y = torch.randint(0, 10, (2048,), device=device)


# --- cell
class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.history = []

    def step(self, xb, yb):
        self.opt.zero_grad()
        loss = F.cross_entropy(self.model(xb), yb)
        loss.backward()
        self.opt.step()
        self.history.append(loss.detach().cpu())
        return loss

    def fit(self, x, y, epochs=2):
        for _ in range(epochs):
            for xb, yb in zip(x.split(1024), y.split(1024)):
                self.step(xb, yb)


trainer = Trainer(model, opt)
trainer.fit(x, y)
