import torch
from torch import nn
unet = nn.Conv2d(4, 4, 3, padding=1).cuda().half()
vae_decoder = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.Upsample(scale_factor=8), nn.Conv2d(64, 3, 3, padding=1)).cuda().half()
text_embeddings = torch.randn(2, 77, 768).cuda().half()
# --- cell
latents = torch.randn((1, 4, 32, 32), device="cuda", dtype=torch.float16)
for t in torch.linspace(999, 0, 10):
    latent_model_input = torch.cat([latents] * 2)
    with torch.no_grad():
        noise_pred = unet(latent_model_input)
    noise_pred_uncond, noise_pred_text = noise_pred.chunk(2)
    noise_pred = noise_pred_uncond + 7.5 * (noise_pred_text - noise_pred_uncond)
    latents = latents - 0.1 * noise_pred
with torch.no_grad():
    image = vae_decoder(1 / 0.18215 * latents)
image = (image / 2 + 0.5).clamp(0, 1).squeeze()
image = (image.permute(1, 2, 0) * 255).to(torch.uint8).cpu().numpy()
