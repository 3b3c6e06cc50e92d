# %% unconditional training | https://huggingface.co/docs/diffusers/main/en/tutorials/basic_training
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel

model = UNet2DModel(
    sample_size=64,
    block_out_channels=(64, 128, 128, 256),
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
).cuda()
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    clean = torch.randn(8, 3, 64, 64, device="cuda")
    noise = torch.randn_like(clean)
    steps = torch.randint(0, 1000, (8,), device="cuda")
    pred = model(scheduler.add_noise(clean, noise, steps), steps, return_dict=False)[0]
    F.mse_loss(pred, noise).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% ddpm pipeline | https://huggingface.co/docs/diffusers/main/en/quicktour
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

unet = UNet2DModel(
    sample_size=32,
    block_out_channels=(64, 128),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
pipeline = DDPMPipeline(unet, DDPMScheduler()).to("cuda")
images = pipeline(batch_size=4, num_inference_steps=20).images

# %% cpu offload | https://huggingface.co/docs/diffusers/main/en/optimization/memory
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

unet = UNet2DModel(
    sample_size=32,
    block_out_channels=(64, 128),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
pipeline = DDPMPipeline(unet, DDPMScheduler())
pipeline.enable_model_cpu_offload()
images = pipeline(batch_size=4, num_inference_steps=10).images

# %% vae tiling | https://huggingface.co/docs/diffusers/main/en/optimization/memory
import torch
from diffusers import AutoencoderKL

vae = (
    AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    )
    .half()
    .cuda()
)
vae.enable_slicing()
vae.enable_tiling()
with torch.no_grad():
    image = vae.decode(torch.randn(1, 4, 128, 128, device="cuda", dtype=torch.float16)).sample
