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
