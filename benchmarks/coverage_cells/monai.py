# %% unet 3d | https://github.com/Project-MONAI/tutorials/blob/main/3d_segmentation/unet_training_dict.py
import torch
from monai.losses import DiceLoss
from monai.networks.nets import UNet

model = UNet(
    spatial_dims=3,
    in_channels=1,
    out_channels=1,
    channels=(16, 32, 64, 128, 256),
    strides=(2, 2, 2, 2),
    num_res_units=2,
).to("cuda")
loss_function = DiceLoss(sigmoid=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(3):
    inputs = torch.randn(2, 1, 96, 96, 96, device="cuda")
    labels = torch.randint(0, 2, (2, 1, 96, 96, 96), device="cuda")
    optimizer.zero_grad()
    loss = loss_function(model(inputs), labels)
    loss.backward()
    optimizer.step()

# %% sliding window | https://docs.monai.io/en/stable/inferers.html
import torch
from monai.inferers import sliding_window_inference
from monai.networks.nets import BasicUNet

model = BasicUNet(spatial_dims=3, in_channels=1, out_channels=2).to("cuda").eval()
with torch.no_grad():
    x = torch.randn(1, 1, 160, 160, 160, device="cuda")
    out = sliding_window_inference(x, (96, 96, 96), 4, model)

# %% latent diffusion | https://docs.monai.io/en/stable/networks.html
import torch
from monai.inferers import DiffusionInferer
from monai.networks.nets import AutoencoderKL, DiffusionModelUNet
from monai.networks.schedulers import DDPMScheduler

device = torch.device("cuda")
vae = AutoencoderKL(
    spatial_dims=3,
    in_channels=1,
    out_channels=1,
    channels=(32, 64, 64),
    latent_channels=3,
    num_res_blocks=1,
    norm_num_groups=16,
    attention_levels=(False, False, True),
).to(device)
unet = DiffusionModelUNet(
    spatial_dims=3,
    in_channels=3,
    out_channels=3,
    num_res_blocks=1,
    channels=(32, 64, 64),
    attention_levels=(False, True, True),
    num_head_channels=(0, 64, 64),
    norm_num_groups=32,
).to(device)
scheduler = DDPMScheduler(num_train_timesteps=1000, schedule="scaled_linear_beta")
inferer = DiffusionInferer(scheduler)
opt = torch.optim.Adam(unet.parameters(), lr=1e-4)
images = torch.randn(1, 1, 48, 64, 48, device=device)
for _ in range(2):
    with torch.no_grad():
        z = vae.encode_stage_2_inputs(images)
    noise = torch.randn_like(z)
    timesteps = torch.randint(0, 1000, (1,), device=device).long()
    with torch.autocast("cuda"):
        pred = inferer(inputs=z, diffusion_model=unet, noise=noise, timesteps=timesteps)
        loss = torch.nn.functional.mse_loss(pred.float(), noise.float())
    opt.zero_grad()
    loss.backward()
    opt.step()
scheduler.set_timesteps(num_inference_steps=5)
with torch.no_grad():
    out = vae.decode(
        inferer.sample(
            input_noise=torch.randn_like(z),
            diffusion_model=unet,
            scheduler=scheduler,
            verbose=False,
        )
    )
