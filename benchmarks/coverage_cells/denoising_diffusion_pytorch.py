# %% unet | https://github.com/lucidrains/denoising-diffusion-pytorch
import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Unet

model = Unet(dim=64, dim_mults=(1, 2, 4, 8), flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=64, timesteps=1000).cuda()
loss = diffusion(torch.rand(8, 3, 64, 64, device="cuda"))
loss.backward()
