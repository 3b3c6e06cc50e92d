import copy, torch
from torch import nn
import torch.nn.functional as F
unet = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1), nn.SiLU(),
                     nn.Conv2d(64, 3, 3, padding=1)).cuda()
betas = torch.linspace(1e-4, 0.02, 1000).cuda()
alphas_cumprod = torch.cumprod(1 - betas, 0)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
batches = [torch.randn(16, 3, 32, 32) for _ in range(5)]
# --- cell
ema = copy.deepcopy(unet).requires_grad_(False).eval()
for step, clean_images in enumerate(batches):
    clean_images = clean_images.to("cuda")
    noise = torch.randn(clean_images.shape, device="cuda")
    timesteps = torch.randint(0, 1000, (clean_images.shape[0],), device="cuda")
    a = alphas_cumprod[timesteps].view(-1, 1, 1, 1)
    noisy = a.sqrt() * clean_images + (1 - a).sqrt() * noise
    t = (timesteps / 1000).view(-1, 1, 1, 1).expand(-1, 1, 32, 32)
    noise_pred = unet(torch.cat([noisy, t], 1))
    loss = F.mse_loss(noise_pred, noise)
    loss.backward()
    nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for target, online in zip(ema.parameters(), unet.parameters()):
            target.lerp_(online, 0.001)
    logs = {"loss": loss.detach().item(), "step": step}
