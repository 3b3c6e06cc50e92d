# %% ssim | https://github.com/VainF/pytorch-msssim
import torch
from pytorch_msssim import MS_SSIM, ssim

X = torch.rand(8, 3, 256, 256, device="cuda", requires_grad=True)
Y = torch.rand(8, 3, 256, 256, device="cuda")
(1 - ssim(X, Y, data_range=1.0)).backward()
(1 - MS_SSIM(data_range=1.0, channel=3)(X, Y)).backward()
