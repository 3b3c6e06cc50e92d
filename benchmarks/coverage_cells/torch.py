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

# %% func per sample grads | https://docs.pytorch.org/tutorials/intermediate/per_sample_grads.html
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


device = "cuda"
model = SimpleCNN().to(device)
data = torch.randn(64, 1, 28, 28, device=device)
targets = torch.randint(10, (64,), device=device)
params = {k: v.detach() for k, v in model.named_parameters()}
buffers = {k: v.detach() for k, v in model.named_buffers()}


def compute_loss(params, buffers, sample, target):
    return F.nll_loss(
        functional_call(model, (params, buffers), (sample.unsqueeze(0),)), target.unsqueeze(0)
    )


ft_compute_sample_grad = vmap(grad(compute_loss), in_dims=(None, None, 0, 0))
grads = ft_compute_sample_grad(params, buffers, data, targets)
print(grads["fc1.weight"].shape)

# %% jacobian hessian | https://docs.pytorch.org/tutorials/intermediate/jacobians_hessians.html
import torch
import torch.nn.functional as F
from torch.func import hessian, jacfwd, jacrev, vjp, vmap

D = 256
device = "cuda"


def predict(weight, bias, x):
    return F.linear(x, weight, bias).tanh()


weight = torch.randn(D, D, device=device)
bias = torch.randn(D, device=device)
x = torch.randn(D, device=device)
ft_jacobian = jacrev(predict, argnums=2)(weight, bias, x)
jacobian_fwd = jacfwd(predict, argnums=2)(weight, bias, x)
hess = hessian(predict, argnums=2)(weight, bias, x)
print(ft_jacobian.shape, hess.shape)

# %% cuda graphs | https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
import torch

N, D_in, H, D_out = 640, 4096, 2048, 1024
model = torch.nn.Sequential(
    torch.nn.Linear(D_in, H),
    torch.nn.Dropout(p=0.2),
    torch.nn.Linear(H, D_out),
    torch.nn.Dropout(p=0.1),
).cuda()
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
static_input = torch.randn(N, D_in, device="cuda")
static_target = torch.randn(N, D_out, device="cuda")
s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for i in range(3):
        optimizer.zero_grad(set_to_none=True)
        y_pred = model(static_input)
        loss = loss_fn(y_pred, static_target)
        loss.backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(g):
    static_y_pred = model(static_input)
    static_loss = loss_fn(static_y_pred, static_target)
    static_loss.backward()
    optimizer.step()
for _ in range(3):
    static_input.copy_(torch.randn(N, D_in, device="cuda"))
    static_target.copy_(torch.randn(N, D_out, device="cuda"))
    g.replay()
print(static_loss.item())

# %% prefetcher streams | https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
import gc
import torch

torch.cuda.reset_peak_memory_stats()
stream = torch.cuda.Stream()
event = torch.cuda.Event(enable_timing=True)
end = torch.cuda.Event(enable_timing=True)
host = [torch.randn(32, 3, 224, 224).pin_memory() for _ in range(3)]
model = torch.nn.Conv2d(3, 64, 7, 2).cuda()
event.record()
batches = []
for h in host:
    with torch.cuda.stream(stream):
        d = h.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    d.record_stream(torch.cuda.current_stream())
    batches.append(model(d).mean())
end.record()
torch.cuda.synchronize()
print(event.elapsed_time(end))
gc.collect()
torch.cuda.empty_cache()
stats = torch.cuda.memory_stats()
print(torch.cuda.memory_summary(abbreviated=True))
print(stats["allocated_bytes.all.peak"] / 2**20, torch.cuda.mem_get_info())
free, total = torch.cuda.mem_get_info()
assert total > 0

# %% flex attention | https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

q, k, v = (
    torch.randn(2, 8, 1024, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    for _ in range(3)
)
with sdpa_kernel(SDPBackend.MATH):
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

# %% optimizer in backward | https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html
import torch
from torchvision import models

model = models.vit_l_16(weights=None).cuda()
optimizer_dict = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}


def optimizer_hook(parameter) -> None:
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)
for _ in range(2):
    model(torch.rand(1, 3, 224, 224, device="cuda")).sum().backward()
print(torch.cuda.max_memory_allocated())
