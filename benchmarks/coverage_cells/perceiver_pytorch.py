# %% perceiver | https://github.com/lucidrains/perceiver-pytorch
import torch
from perceiver_pytorch import Perceiver

model = Perceiver(
    input_channels=3,
    input_axis=2,
    num_freq_bands=6,
    max_freq=10.0,
    depth=3,
    num_latents=256,
    latent_dim=512,
    cross_heads=1,
    latent_heads=8,
    cross_dim_head=64,
    latent_dim_head=64,
    num_classes=1000,
    attn_dropout=0.0,
    ff_dropout=0.0,
    weight_tie_layers=False,
).cuda()
model(torch.randn(1, 224, 224, 3, device="cuda")).sum().backward()
