import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(512, 512), nn.ReLU())]).to(device)
data = [torch.randn(128, 512) for _ in range(6)]

# --- cell
opt = torch.optim.SGD(model.parameters(), lr=0.001)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(2):
    for x in data:
        x = x.to(device)
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), x)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
