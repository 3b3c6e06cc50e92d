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

# %% image registration | https://kornia.readthedocs.io/en/latest/geometry.transform.image_registrator.html
import kornia as K
import torch

img = torch.rand(1, 3, 256, 256, device="cuda")
angle = torch.tensor([20.0], device="cuda", requires_grad=True)
opt = torch.optim.Adam([angle], lr=0.1)
for _ in range(3):
    warped = K.geometry.rotate(img, angle)
    pyramid = K.geometry.ScalePyramid(3, 1.6, 32)(warped)[0]
    loss = K.losses.MS_SSIMLoss().to("cuda")(warped, img) + sum(
        level.square().mean() for level in pyramid
    )
    loss.backward()
    opt.step()
    opt.zero_grad()
lab = K.color.rgb_to_lab(img)
eq = K.enhance.equalize_clahe(img)
aug = K.augmentation.AugmentationSequential(
    K.augmentation.RandomAffine(30.0, p=1.0),
    K.augmentation.RandomElasticTransform(p=1.0),
    K.augmentation.RandomErasing(p=1.0),
    data_keys=["input", "mask"],
)
a, m = aug(
    torch.rand(8, 3, 256, 256, device="cuda"),
    torch.randint(0, 2, (8, 1, 256, 256), device="cuda").float(),
)
