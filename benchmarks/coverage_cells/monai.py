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
