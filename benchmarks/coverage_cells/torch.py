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

# %% selective checkpointing | https://docs.pytorch.org/docs/stable/checkpoint.html
import functools
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

ops = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in ops else CheckpointPolicy.PREFER_RECOMPUTE


context_fn = functools.partial(create_selective_checkpoint_contexts, policy)
blocks = torch.nn.ModuleList(
    torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
    for _ in range(6)
).cuda()
opt = torch.optim.AdamW(blocks.parameters(), fused=True)
for _ in range(2):
    x = torch.randn(8, 256, 512, device="cuda")
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, context_fn=context_fn)
    x.square().mean().backward()
    opt.step()
    opt.zero_grad()

# %% saved on cpu | https://docs.pytorch.org/tutorials/intermediate/autograd_saved_tensors_hooks_tutorial.html
import torch
from torch import nn

model = nn.Sequential(
    *[
        nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        for _ in range(8)
    ]
).cuda()
x = torch.randn(16, 64, 64, 64, device="cuda")
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    y = model(x)
y.mean().backward()
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.float16), lambda t: t.float()):
    z = model(x)
z.mean().backward()

# %% nested jagged attention | https://docs.pytorch.org/tutorials/intermediate/transformer_building_blocks.html
import torch
import torch.nn.functional as F

seqs = [torch.randn(n, 512, device="cuda") for n in (50, 120, 256, 31)]
nt = torch.nested.nested_tensor(seqs, layout=torch.jagged, requires_grad=True)
proj = torch.nn.Linear(512, 1536, device="cuda")
q, k, v = proj(nt).chunk(3, -1)
q, k, v = (t.unflatten(-1, [8, 64]).transpose(1, 2) for t in (q, k, v))
out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
loss = out.to_padded_tensor(0.0).square().mean()
loss.backward()

# %% fsdp2 one rank | https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT="29512", RANK="0", WORLD_SIZE="1")
dist.init_process_group("nccl", rank=0, world_size=1)
torch.cuda.set_device(0)
model = torch.nn.Sequential(
    *[torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(4)]
).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    model(torch.randn(8, 128, 512, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    optim.zero_grad()
dist.destroy_process_group()

# %% nerf | https://docs.pytorch.org/docs/stable/generated/torch.cumprod.html
import torch
from torch import nn


class NeRF(nn.Module):
    def __init__(self, d=63, w=256):
        super().__init__()
        self.pts = nn.ModuleList(
            [nn.Linear(d, w)]
            + [nn.Linear(w, w) if i != 4 else nn.Linear(w + d, w) for i in range(7)]
        )
        self.out = nn.Linear(w, 4)

    def forward(self, x):
        h = x
        for i, layer in enumerate(self.pts):
            h = torch.relu(layer(h))
            if i == 4:
                h = torch.cat([x, h], -1)
        return self.out(h)


def encode(x, n=10):
    return torch.cat([x] + [f(2.0**i * x) for i in range(n) for f in (torch.sin, torch.cos)], -1)


coarse, fine = (NeRF().cuda() for _ in range(2))
coarse.pts[5] = nn.Linear(256 + 63, 256).cuda()
fine.pts[5] = nn.Linear(256 + 63, 256).cuda()
coarse.pts[4] = nn.Linear(256, 256).cuda()
fine.pts[4] = nn.Linear(256, 256).cuda()
opt = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], 5e-4)


def render(net, o, d, t):
    raw = net(encode(o[:, None] + d[:, None] * t[..., None]).reshape(-1, 63)).reshape(*t.shape, 4)
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-torch.relu(raw[..., 3]) * delta)
    weights = (
        alpha
        * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[
            :, :-1
        ]
    )
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(1), weights


for _ in range(2):
    o, d, rgb = (torch.randn(1024, 3, device="cuda") for _ in range(3))
    t = torch.linspace(2, 6, 64, device="cuda").expand(1024, 64)
    c0, w = render(coarse, o, d, t)
    pdf = (w.detach()[:, 1:-1] + 1e-5) / (w.detach()[:, 1:-1] + 1e-5).sum(-1, keepdim=True)
    cdf = torch.cat([torch.zeros_like(pdf[:, :1]), torch.cumsum(pdf, -1)], -1)
    u = torch.rand(1024, 128, device="cuda")
    idx = torch.searchsorted(cdf.contiguous(), u, right=True)
    below, above = (idx - 1).clamp(min=0), idx.clamp(max=cdf.shape[-1] - 1)
    fine_t = torch.sort(
        torch.cat([t, torch.gather(0.5 * (t[:, 1:] + t[:, :-1]), 1, below.clamp(max=62))], -1), -1
    )[0]
    c1, _ = render(fine, o, d, fine_t)
    loss = ((c0 - rgb) ** 2).mean() + ((c1 - rgb) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

# %% flex attention compiled | https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

q, k, v = (
    torch.randn(2, 8, 1024, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    for _ in range(3)
)
documents = torch.arange(1024, device="cuda") // 128


def same_document(b, h, q_idx, kv_idx):
    return documents[q_idx] == documents[kv_idx]


mask = create_block_mask(same_document, 2, None, 1024, 1024, device="cuda")
slopes = torch.randn(8, device="cuda")


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx)


flex = torch.compile(flex_attention, dynamic=False)
flex(q, k, v, score_mod=alibi, block_mask=mask).sum().backward()

# %% export | https://docs.pytorch.org/docs/stable/export.html
import torch
from torch import nn

model = (
    nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    .cuda()
    .eval()
)
x = torch.randn(8, 3, 64, 64, device="cuda")
batch = torch.export.Dim("batch", min=2, max=64)
program = torch.export.export(model, (x,), dynamic_shapes={"input": {0: batch}})
program = program.run_decompositions()
with torch.no_grad():
    print(program.module()(torch.randn(16, 3, 64, 64, device="cuda")).shape)
torch.export.save(program, "model.pt2")

# %% muon beside adamw | https://docs.pytorch.org/docs/stable/generated/torch.optim.Muon.html
import torch
from torch import nn

model = nn.TransformerDecoder(
    nn.TransformerDecoderLayer(256, 8, 1024, batch_first=True, norm_first=True), 3
).cuda()
hidden = [p for p in model.parameters() if p.ndim == 2]
rest = [p for p in model.parameters() if p.ndim != 2]
opts = [
    torch.optim.Muon(hidden, lr=0.02, adjust_lr_fn="match_rms_adamw"),
    torch.optim.AdamW(rest, lr=3e-4),
]
mask = nn.Transformer.generate_square_subsequent_mask(64, device="cuda")
for _ in range(3):
    out = model(
        torch.randn(8, 64, 256, device="cuda"),
        torch.randn(8, 80, 256, device="cuda"),
        tgt_mask=mask,
        tgt_is_causal=True,
    )
    out.square().mean().backward()
    for o in opts:
        o.step()
        o.zero_grad(set_to_none=True)

# %% hessians by vmap | https://docs.pytorch.org/docs/stable/func.api.html
import torch
import torch.nn as nn
import torch.autograd.forward_ad as fwAD
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

net = nn.Sequential(
    nn.Linear(2, 128),
    nn.Tanh(),
    *[m for _ in range(4) for m in (nn.Linear(128, 128), nn.Tanh())],
    nn.Linear(128, 1),
).cuda()
params = dict(net.named_parameters())


def u(p, xt):
    return functional_call(net, p, (xt,)).squeeze()


def residual(p, xt):
    g = jacrev(u, argnums=1)(p, xt)
    h = hessian(u, argnums=1)(p, xt)
    return g[1] + u(p, xt) * g[0] - 0.01 * h[0, 0]


opt = torch.optim.Adam(net.parameters())
for _ in range(2):
    xt = torch.rand(2048, 2, device="cuda")
    loss = vmap(residual, in_dims=(None, 0))(params, xt).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
with fwAD.dual_level():
    d = fwAD.make_dual(torch.rand(512, 2, device="cuda"), torch.ones(512, 2, device="cuda"))
    tangent = fwAD.unpack_dual(net(d)).tangent
out, jv = jvp(lambda x: net(x), (xt,), (torch.ones_like(xt),))
