# nn.TransformerEncoder in evaluation: PyTorch's fast path, in half precision.
import torch
from torch import nn

batch_size = 32
length = 256
width = 768
layers = 12

layer = nn.TransformerEncoderLayer(width, 12, 4 * width, activation="gelu", batch_first=True)
encoder = nn.TransformerEncoder(layer, layers).cuda().half().eval()
head = nn.Linear(width, 2).cuda().half()
scores = []
with torch.inference_mode():
    for _ in range(3):
        x = torch.randn(batch_size, length, width, device="cuda", dtype=torch.float16)
        scores.append(head(encoder(x)[:, 0]))
scores = torch.cat(scores).float().log_softmax(-1)
