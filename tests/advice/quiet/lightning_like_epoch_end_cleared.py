import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class LitModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
        self.validation_step_outputs = []
    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)
    def validation_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.validation_step_outputs.append(loss)
        return loss
    def on_validation_epoch_end(self):
        mean = torch.stack(self.validation_step_outputs).mean()
        self.validation_step_outputs.clear()
        return mean.item()
module = LitModule().to(device)
optimizer = torch.optim.AdamW(module.parameters())
data = TensorDataset(torch.randn(2048, 128), torch.randint(0, 10, (2048,)))
loader = DataLoader(data, batch_size=256)

# --- cell
def move(batch):
    return tuple(t.to(device, non_blocking=True) for t in batch)
for epoch in range(2):
    module.train()
    for batch in loader:
        loss = module.training_step(move(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()
    with torch.no_grad():
        for batch in loader:
            module.validation_step(move(batch))
    val = module.on_validation_epoch_end()
