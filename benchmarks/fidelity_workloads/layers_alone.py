# Attention that returns its weights, nn.Bilinear, layer norm in float16; no optimizer.
import torch
import torch.nn as nn

batch_size = 16
width = 256

attention = nn.MultiheadAttention(width, 8, dropout=0.1, batch_first=True).cuda()
bilinear = nn.Bilinear(width, 64, 32).cuda()
x = torch.randn(batch_size, 50, width, device="cuda", requires_grad=True)
y, weights = attention(
    x, x, x, attn_mask=torch.triu(torch.ones(50, 50, device="cuda", dtype=torch.bool), 1)
)
z = bilinear(y, y[..., :64])
(z.sum() + weights.var()).backward()
half = (
    nn.Sequential(
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.GELU(approximate="tanh"),
        nn.Linear(width, 1),
    )
    .cuda()
    .half()
)
half(x.detach().half()).float().sum().backward()
with torch.inference_mode():
    w = half(x.half())
    v, weights = attention.eval()(x, x, x, average_attn_weights=False)
