import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
X = torch.randn(4096, 512)
Y = torch.randint(0, 10, (4096,))
train_dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=2048)

# --- cell
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base_optimizer = base_optimizer(self.param_groups, **kw)
    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]))
        for g in self.param_groups:
            for p in g["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (g["rho"] / (norm + 1e-12)))
        if zero_grad: self.zero_grad()
    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for g in self.param_groups:
            for p in g["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        if zero_grad: self.zero_grad()

opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for xb, yb in train_dl:
    xb, yb = xb.to(device), yb.to(device)
    criterion(model(xb), yb).backward()
    opt.first_step(zero_grad=True)
    criterion(model(xb), yb).backward()
    opt.second_step(zero_grad=True)
