import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(2048, 512, device=device)
y = torch.randint(0, 10, (2048,), device=device)

# --- cell
for phase in ["train", "val"]:
    model.train(phase == "train")
    for xb, yb in zip(x.split(512), y.split(512)):
        opt.zero_grad()
        with torch.set_grad_enabled(phase == "train"):
            out = model(xb)
            loss = F.cross_entropy(out, yb)
            if phase == "train":
                loss.backward()
                opt.step()
