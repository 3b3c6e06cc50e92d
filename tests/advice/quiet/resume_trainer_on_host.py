import os, tempfile
import torch
from torch import nn
torch.manual_seed(0)
path = os.path.join(tempfile.mkdtemp(), "last.ckpt")
start = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
torch.save({"model": start.state_dict(), "epoch": 2}, path)
# --- cell
class Trainer:
    def __init__(self, path=None):
        self.model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.epoch = 0
        if path:
            self.resume(path)

    def resume(self, path):
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(checkpoint["model"])
        self.epoch = checkpoint["epoch"] + 1

    def step(self, x):
        loss = self.model(x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

trainer = Trainer(path)
losses = [trainer.step(torch.randn(64, 256, device="cuda")) for _ in range(5)]
print(trainer.epoch, losses[-1])
