import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 32)
        self.net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1))

    def forward(self, x, t):
        return self.net(x) + self.time(t).mean(1)[:, None, None, None]

unet = Denoiser().to(device)
betas = torch.linspace(1e-4, 0.02, 50, device=device)
alphas = torch.cumprod(1 - betas, dim=0)

# --- cell
@torch.no_grad()
def sample(model, n):
    model.eval()
    x = torch.randn(n, 3, 32, 32, device=device)
    for t in reversed(range(50)):
        noise = model(x, torch.full((n,), t, device=device))
        x = (x - betas[t] / (1 - alphas[t]).sqrt() * noise) / (1 - betas[t]).sqrt()
        if t > 0:
            x = x + betas[t].sqrt() * torch.randn_like(x)
    return x.clamp(-1, 1).cpu()

images = sample(unet, 8)
