# %% vit | https://github.com/lucidrains/vit-pytorch
import torch
from vit_pytorch import ViT

v = ViT(
    image_size=256,
    patch_size=32,
    num_classes=1000,
    dim=1024,
    depth=6,
    heads=16,
    mlp_dim=2048,
    dropout=0.1,
    emb_dropout=0.1,
).cuda()
optimizer = torch.optim.AdamW(v.parameters(), lr=3e-4)
for _ in range(3):
    preds = v(torch.randn(8, 3, 256, 256, device="cuda"))
    torch.nn.functional.cross_entropy(preds, torch.randint(0, 1000, (8,), device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% simple vit | https://github.com/lucidrains/vit-pytorch#simple-vit
import torch
from vit_pytorch import SimpleViT

v = SimpleViT(
    image_size=256, patch_size=32, num_classes=1000, dim=1024, depth=6, heads=16, mlp_dim=2048
).cuda()
with torch.no_grad():
    preds = v(torch.randn(32, 3, 256, 256, device="cuda"))
