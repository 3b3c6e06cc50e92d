# %% ft transformer | https://github.com/lucidrains/tab-transformer-pytorch
import torch
from tab_transformer_pytorch import FTTransformer

model = FTTransformer(
    categories=(10, 5, 6, 5, 8),
    num_continuous=10,
    dim=32,
    dim_out=1,
    depth=6,
    heads=8,
    attn_dropout=0.1,
    ff_dropout=0.1,
).cuda()
x_categ = torch.randint(0, 5, (256, 5)).cuda()
pred = model(x_categ, torch.randn(256, 10, device="cuda"))
pred.mean().backward()
