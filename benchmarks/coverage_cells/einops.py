# %% attention by einsum | https://einops.rocks/pytorch-examples.html
import torch
from einops import einsum, rearrange, reduce
from einops.layers.torch import Rearrange

x = torch.randn(8, 512, 768, device="cuda", requires_grad=True)
to_qkv = torch.nn.Linear(768, 3 * 768, bias=False).cuda()
q, k, v = rearrange(to_qkv(x), "b t (three h d) -> three b h t d", three=3, h=12)
attn = einsum(q, k, "b h i d, b h j d -> b h i j").div(8).softmax(-1)
out = rearrange(einsum(attn, v, "b h i j, b h j d -> b h i d"), "b h t d -> b t (h d)")
reduce(out, "b t d -> b d", "mean").sum().backward()

# %% patches | https://einops.rocks/2-einops-for-deep-learning/
import torch
from einops.layers.torch import Rearrange, Reduce
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 7),
    nn.ReLU(),
    Reduce("b c (h h2) (w w2) -> b c h w", "max", h2=2, w2=2),
    Rearrange("b c h w -> b (h w) c"),
    nn.Linear(64, 128),
    Reduce("b t c -> b c", "mean"),
).cuda()
net(torch.randn(8, 3, 102, 102, device="cuda")).sum().backward()
