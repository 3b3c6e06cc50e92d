# %% augmentation | https://kornia.readthedocs.io/en/latest/augmentation.html
import kornia.augmentation as K
import torch

aug = torch.nn.Sequential(
    K.RandomHorizontalFlip(p=0.5), K.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0), K.RandomErasing(p=1.0)
)
images = torch.rand(16, 3, 224, 224).cuda()
out = aug(images)

# %% gaussian blur and sobel | https://kornia.readthedocs.io/en/latest/filters.html
import kornia
import torch

x = torch.rand(8, 3, 512, 512, device="cuda")
blurred = kornia.filters.gaussian_blur2d(x, (11, 11), (10.5, 10.5))
edges = kornia.filters.sobel(blurred)

# %% focal and ssim loss | https://kornia.readthedocs.io/en/latest/losses.html
import kornia
import torch

logits = torch.randn(4, 5, 128, 128, device="cuda", requires_grad=True)
target = torch.randint(0, 5, (4, 128, 128), device="cuda")
kornia.losses.focal_loss(logits, target, alpha=0.5, gamma=2.0, reduction="mean").backward()
a = torch.rand(4, 3, 128, 128, device="cuda", requires_grad=True)
kornia.losses.ssim_loss(a, torch.rand_like(a), 5).backward()
