import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


net = Net().to(device)
images = torch.randn(64, 3, 32, 32, device=device)
labels = torch.randint(0, 10, (64,), device=device)

# --- cell
unet = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1)).to(
    device
)
opt = torch.optim.AdamW(unet.parameters(), lr=1e-4)
alphas = torch.linspace(0.99, 0.1, 100, device=device)
for step in range(2):
    t = torch.randint(0, 100, (len(images),), device=device)
    a = alphas[t].view(-1, 1, 1, 1)
    noise = torch.randn_like(images)
    loss = F.mse_loss(unet(a.sqrt() * images + (1 - a).sqrt() * noise), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
