# %% rk4 | https://github.com/rtqichen/torchdiffeq
import torch
from torch import nn
from torchdiffeq import odeint


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

    def forward(self, t, y):
        return self.net(y**3)


func = ODEFunc().to("cuda")
optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
t = torch.linspace(0.0, 25.0, 50).to("cuda")
pred = odeint(func, torch.randn(512, 1, 2, device="cuda"), t, method="rk4")
pred.abs().mean().backward()
optimizer.step()

# %% adjoint dopri5 | https://github.com/rtqichen/torchdiffeq#adjoint
import torch
from torch import nn
from torchdiffeq import odeint_adjoint


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

    def forward(self, t, y):
        return self.net(y**3)


func = ODEFunc().cuda()
y = odeint_adjoint(
    func, torch.randn(64, 2, device="cuda"), torch.linspace(0, 1, 3).cuda(), method="euler"
)
y.abs().mean().backward()
