# %% finetune vit | https://huggingface.co/docs/timm/quickstart
import timm
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
import torch

model = timm.create_model("vit_small_patch16_224", pretrained=False, num_classes=10).cuda()
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
loss_fn = LabelSmoothingCrossEntropy(0.1)
for _ in range(3):
    x = torch.randn(32, 3, 224, 224, device="cuda")
    loss = loss_fn(model(x), torch.randint(0, 10, (32,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% lion ema | https://huggingface.co/docs/timm/reference/optimizers
import timm
from timm.optim import create_optimizer_v2
import torch
from timm.utils import ModelEmaV3

model = timm.create_model("resnet50", pretrained=False).cuda()
ema = ModelEmaV3(model, decay=0.999)
optimizer = create_optimizer_v2(model, opt="lion", lr=1e-4)
for _ in range(3):
    loss = model(torch.randn(16, 3, 224, 224, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)

# %% muon | https://huggingface.co/docs/timm/reference/optimizers
import timm
from timm.optim import create_optimizer_v2
import torch

model = timm.create_model("vit_small_patch16_224", pretrained=False, num_classes=10).cuda()
optimizer = create_optimizer_v2(model, opt="muon", lr=1e-3)
for _ in range(3):
    loss = model(torch.randn(8, 3, 224, 224, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% mixup ema training script | https://huggingface.co/docs/timm/training_script
import time
from contextlib import suppress
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV2, NativeScaler, accuracy, dispatch_clip_grad

model = (
    timm.create_model("convnext_atto", num_classes=100, drop_path_rate=0.1)
    .cuda()
    .to(memory_format=torch.channels_last)
)
mixup_fn = Mixup(
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    prob=1.0,
    switch_prob=0.5,
    mode="batch",
    label_smoothing=0.1,
    num_classes=100,
)
optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
scheduler = CosineLRScheduler(optimizer, t_initial=10, warmup_t=2)
ema = ModelEmaV2(model, decay=0.9998)
scaler = NativeScaler()
losses = AverageMeter()
model.train()
for i in range(3):
    x, y = torch.randn(32, 3, 160, 160).cuda(), torch.randint(0, 100, (32,)).cuda()
    x, y = mixup_fn(x, y)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda"):
        loss = SoftTargetCrossEntropy()(model(x), y)
    losses.update(loss.item(), x.size(0))
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=5.0, clip_mode="norm", parameters=model.parameters())
    ema.update(model)
    torch.cuda.synchronize()
    scheduler.step(i)
model.eval()
with torch.no_grad():
    acc1, acc5 = accuracy(ema.module(x), torch.randint(0, 100, (32,)).cuda(), topk=(1, 5))
print(losses.avg, acc1.item())

# %% lamb with layer decay | https://huggingface.co/docs/timm/reference/optimizers
import timm
import torch
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import NativeScaler, dispatch_clip_grad

model = (
    timm.create_model("convnextv2_nano", num_classes=100, drop_path_rate=0.1)
    .cuda()
    .to(memory_format=torch.channels_last)
)
model.set_grad_checkpointing()
optimizer = create_optimizer_v2(model, opt="lamb", lr=4e-3, weight_decay=0.05, layer_decay=0.75)
scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2, warmup_epochs=1)
mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=100, label_smoothing=0.1)
loss_fn = BinaryCrossEntropy(smoothing=0.1)
loss_scaler = NativeScaler()
for epoch in range(2):
    for _ in range(2):
        x, y = mixup(
            torch.randn(16, 3, 224, 224, device="cuda"), torch.randint(0, 100, (16,), device="cuda")
        )
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    scheduler.step(epoch + 1)
