import torch
from torch import nn
layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 4).cuda().eval()
image_tokens = torch.randn(2, 65, 128).cuda()
# --- cell
features = {}
handles = [
    layer.register_forward_hook(lambda m, i, o, n=n: features.__setitem__(n, o.detach().cpu()))
    for n, layer in enumerate(layers.layers)
]
try:
    with torch.no_grad():
        layers(image_tokens)
finally:
    for handle in handles:
        handle.remove()
print({n: tuple(f.shape) for n, f in features.items()})
