# The encoder's fast path with padding and causal masks, float32; inference.
import torch
import torch.nn as nn

batch_size = 16
length = 64
width = 256

layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, activation="gelu")
model = nn.TransformerEncoder(layer, 3).cuda().eval()
x = torch.randn(batch_size, length, width, device="cuda")
lengths = torch.full((batch_size,), length, device="cuda")
mask = torch.arange(length, device="cuda")[None] >= lengths[:, None]
with torch.no_grad():
    y = model(x, src_key_padding_mask=mask)
    z = model(
        x, mask=nn.Transformer.generate_square_subsequent_mask(length, "cuda"), is_causal=True
    )
