# %% linear4bit | https://huggingface.co/docs/bitsandbytes/main/en/reference/nn/linear4bit
import bitsandbytes as bnb
import torch
from torch import nn

model = nn.Sequential(
    bnb.nn.Linear4bit(4096, 4096, compute_dtype=torch.bfloat16, quant_type="nf4"),
    bnb.nn.Linear4bit(4096, 4096, compute_dtype=torch.bfloat16, quant_type="nf4"),
)
model = model.to("cuda")
x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
model(x).sum().backward()

# %% linear8bit | https://huggingface.co/docs/bitsandbytes/main/en/reference/nn/linear8bit
import bitsandbytes as bnb
import torch
from torch import nn

fp16_model = nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1024)).half()
int8_model = nn.Sequential(
    bnb.nn.Linear8bitLt(1024, 4096, has_fp16_weights=False),
    bnb.nn.Linear8bitLt(4096, 1024, has_fp16_weights=False),
)
int8_model.load_state_dict(fp16_model.state_dict())
int8_model = int8_model.to("cuda")
out = int8_model(torch.randn(32, 1024, device="cuda", dtype=torch.float16))

# %% adamw8bit | https://huggingface.co/docs/bitsandbytes/main/en/optimizers
import bitsandbytes as bnb
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-4)
for _ in range(3):
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% paged adamw | https://huggingface.co/docs/bitsandbytes/main/en/optimizers
import bitsandbytes as bnb
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = bnb.optim.PagedAdamW8bit(model.parameters(), lr=1e-4)
for _ in range(3):
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% merely imported | https://huggingface.co/docs/bitsandbytes/main/en/index
import bitsandbytes
import torch
from transformers import Trainer

x = torch.randn(1024, 1024, device="cuda")
