# nn.TransformerEncoder with padding, autocast to float16 and a GradScaler; AdamW.
import torch
from torch import nn

batch_size = 32
length = 128
width = 512
layers = 6
vocabulary = 20000


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width))
        self.head = nn.Linear(width, 5)

    def forward(self, ids):
        padding = ids == 0
        x = self.layers(self.token(ids), src_key_padding_mask=padding)
        x = x.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True)
        return self.head(x)


model = Classifier().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    ids = torch.randint(1, vocabulary, (batch_size, length))
    ids[::2, length // 2 :] = 0
    ids = ids.to("cuda", non_blocking=True)
    labels = torch.randint(0, 5, (batch_size,)).to("cuda", non_blocking=True)
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(ids), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
