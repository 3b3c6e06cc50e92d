# %% int8 weight only | https://github.com/pytorch/ao
import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_

model = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096)).to(torch.bfloat16).cuda()
quantize_(model, Int8WeightOnlyConfig())
with torch.no_grad():
    model(torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16))

# %% adamw8bit | https://github.com/pytorch/ao/tree/main/torchao/optim
import torch
from torch import nn
from torchao.optim import AdamW8bit

model = nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048)).cuda()
optimizer = AdamW8bit(model.parameters())
for _ in range(3):
    model(torch.randn(16, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

# %% int4 weight only | https://github.com/pytorch/ao
import torch
from torch import nn
from torchao.quantization import Int4WeightOnlyConfig, quantize_

model = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096)).to(torch.bfloat16).cuda()
quantize_(model, Int4WeightOnlyConfig(group_size=128))
with torch.no_grad():
    model(torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16))

# %% adamw4bit | https://github.com/pytorch/ao/tree/main/torchao/optim
import torch
from torch import nn
from torchao.optim import AdamW4bit

model = nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048)).cuda()
optimizer = AdamW4bit(model.parameters())
for _ in range(3):
    model(torch.randn(16, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

# %% qat | https://docs.pytorch.org/ao/main/workflows/qat.html
import torch
from torchao.quantization import quantize_, Int8DynamicActivationIntxWeightConfig
from torchao.quantization.qat import QATConfig, IntxFakeQuantizeConfig

model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
).cuda()
act = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
weight = IntxFakeQuantizeConfig(torch.int4, group_size=32)
quantize_(model, QATConfig(activation_config=act, weight_config=weight, step="prepare"))
opt = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    opt.step()
    opt.zero_grad()
