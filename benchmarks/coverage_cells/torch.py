# %% compiled training | https://docs.pytorch.org/tutorials/intermediate/torch_compile_tutorial.html
import torch
from torch import nn

model = torch.compile(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()

# %% lbfgs | https://docs.pytorch.org/docs/stable/generated/torch.optim.LBFGS.html
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
x, y = torch.randn(1024, 64, device="cuda"), torch.randn(1024, 1, device="cuda")
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(5):
    optimizer.step(closure)

# %% swa | https://docs.pytorch.org/docs/stable/optim.html
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 900, 10)
).cuda()
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = SWALR(optimizer, swa_lr=0.05)
data = [torch.randn(16, 3, 32, 32) for _ in range(8)]
for x in data:
    optimizer.zero_grad()
    model(x.cuda()).square().mean().backward()
    optimizer.step()
    swa_model.update_parameters(model)
    scheduler.step()
update_bn(data, swa_model, device="cuda")

# %% amp example | https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html
import torch
from torch import nn

net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(3))).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.001)
scaler = torch.amp.GradScaler("cuda")
for _ in range(5):
    with torch.autocast(device_type="cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(
            net(torch.randn(512, 4096, device="cuda")), torch.randn(512, 4096, device="cuda")
        )
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()

# %% loss until converged | https://docs.pytorch.org/tutorials/beginner/pytorch_with_examples.html
import torch

x = torch.linspace(-3, 3, 2000, device="cuda")
y = torch.sin(x)
model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1)).cuda()
powers = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3], device="cuda"))
loss_fn = torch.nn.MSELoss(reduction="sum")
for t in range(2000):
    loss = loss_fn(model(powers), y)
    if t % 100 == 99:
        print(t, loss.item())
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for param in model.parameters():
            param -= 1e-6 * param.grad
