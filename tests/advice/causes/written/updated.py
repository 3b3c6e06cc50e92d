# %% history-of-lbfgs | 300MiB | ^optimizer-state The state of LBFGS .*history_size
import torch
from torch import nn
field = nn.Sequential(nn.Linear(3, 1500), nn.Tanh(), nn.Linear(1500, 1500), nn.Tanh(), nn.Linear(1500, 1)).cuda()
solver = torch.optim.LBFGS(field.parameters(), max_iter=30, history_size=60)
points, values = torch.rand(64, 3, device="cuda"), torch.rand(64, 1, device="cuda")
def misfit():
    solver.zero_grad()
    rest = (field(points) - values).square().mean()
    rest.backward()
    return rest
for _ in range(5):
    solver.step(misfit)
# %% adam-as-a-plain-class | 240MiB | ^optimizer-state An optimizer written by hand keeps 96\.\d+ MiB
import torch
from torch import nn
class Rule:
    def __init__(self, weights):
        self.weights = list(weights)
        self.first = [torch.zeros_like(w) for w in self.weights]
        self.second = [torch.zeros_like(w) for w in self.weights]
    @torch.no_grad()
    def update(self, lr=1e-3):
        for w, a, b in zip(self.weights, self.first, self.second):
            a.lerp_(w.grad, .1)
            b.mul_(.99).addcmul_(w.grad, w.grad, value=.01)
            w -= lr * a / (b.sqrt() + 1e-8)
            w.grad = None
# ## cell, or one
tower = nn.Sequential(nn.Linear(1536, 4096), nn.ReLU(), nn.Linear(4096, 1536)).cuda()
rule = Rule(tower.parameters())
for _ in range(3):
    tower(torch.randn(32, 1536, device="cuda")).square().mean().backward()
    rule.update()
# %% momenta-begun-in-the-first-step | 250MiB | ^optimizer-state An optimizer written by hand keeps
import torch
from torch import nn
speed = {}
def descend(model, lr=.01):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            speed[name] = speed.get(name, torch.zeros_like(weight)) * .9 + weight.grad
            weight -= lr * speed[name]
coder = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()
for _ in range(3):
    coder(torch.randn(16, 2048, device="cuda")).mean().backward()
    descend(coder)
    coder.zero_grad()
# %% a-part-in-no-optimizer-fails-first | 400MiB | ^frozen-layers-record No optimizer changes probe\.trunk
import torch
from torch import nn
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(*[nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(8)])
        self.top = nn.Linear(768, 4)
    def forward(self, inputs):
        return self.top(self.trunk(inputs).detach())
probe = Probe().cuda()
sgd = torch.optim.SGD(probe.top.parameters(), lr=.1)
for _ in range(2):
    sgd.zero_grad()
    probe(torch.randn(12000, 768, device="cuda")).square().mean().backward()
    sgd.step()
# %% a-loss-network-in-no-optimizer | 320MiB | ^frozen-layers-record No optimizer changes likeness
import torch
from torch import nn
class Likeness(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, padding=1), nn.ReLU())
    def forward(self, made, wanted):
        return (self.features(made) - self.features(wanted)).square().mean()
painter = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)).cuda()
likeness = Likeness().cuda()
sgd = torch.optim.SGD(painter.parameters(), lr=.1)
for _ in range(2):
    worn, sharp = torch.rand(8, 3, 160, 160, device="cuda"), torch.rand(8, 3, 160, 160, device="cuda")
    loss = likeness(painter(worn), sharp)
    sgd.zero_grad(); loss.backward(); sgd.step()
# %% validation-in-a-module's-method | 350MiB | ^missing-no-grad .*line 17
import torch
from torch import nn
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(96, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 1))
    def training_step(self, part):
        return self.layers(part).mean()
    def validation_step(self, part):
        return self.layers(part).abs().mean()
learner = Learner().cuda()
sgd = torch.optim.SGD(learner.parameters(), lr=.1)
learning, held_out = torch.randn(64, 96, device="cuda"), torch.randn(26000, 96, device="cuda")
for _ in range(2):
    loss = learner.training_step(learning); sgd.zero_grad(); loss.backward(); sgd.step()
    print(learner.validation_step(held_out).item())
# %% second-order-steps | 120MiB | ^growth .*create_graph=True
import torch
from torch import nn
from torch.func import functional_call
base = nn.Sequential(nn.Linear(400, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 3)).cuda()
outer = torch.optim.SGD(base.parameters(), lr=.1)
def inner(state, inputs, classes):
    for _ in range(20):
        fit = nn.functional.cross_entropy(functional_call(base, state, (inputs,)), classes)
        slopes = torch.autograd.grad(fit, [*state.values()], create_graph=True)
        state = {name: value - .1 * slope for (name, value), slope in zip(state.items(), slopes)}
    return state
for _ in range(2):
    inputs, classes = torch.randn(16, 400, device="cuda"), torch.randint(3, (16,), device="cuda")
    ready = inner(dict(base.named_parameters()), inputs, classes)
    outer.zero_grad()
    nn.functional.cross_entropy(functional_call(base, ready, (inputs,)), classes).backward()
    outer.step()
