# %% unet | https://segmentation-modelspytorch.readthedocs.io/en/latest/quickstart.html
import segmentation_models_pytorch as smp
import torch

model = smp.Unet(encoder_name="resnet34", encoder_weights=None, in_channels=3, classes=3).cuda()
loss_fn = smp.losses.DiceLoss(smp.losses.MULTICLASS_MODE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for _ in range(3):
    mask = model(torch.randn(8, 3, 256, 256, device="cuda"))
    loss = loss_fn(mask, torch.randint(0, 3, (8, 256, 256), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% deeplab inference | https://github.com/qubvel-org/segmentation_models.pytorch
import segmentation_models_pytorch as smp
import torch

model = smp.DeepLabV3Plus("efficientnet-b0", encoder_weights=None, classes=19).half().cuda().eval()
with torch.inference_mode():
    logits = model(torch.randn(4, 3, 512, 512, device="cuda", dtype=torch.float16))
