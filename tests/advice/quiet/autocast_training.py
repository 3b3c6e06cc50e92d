import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(128, 512, device=device)
y = torch.randint(0, 10, (128,), device=device)

# --- cell
scaler = torch.amp.GradScaler("cuda")
for step in range(2):
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
opt.zero_grad(set_to_none=True)
