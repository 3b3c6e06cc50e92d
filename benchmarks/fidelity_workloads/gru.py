# A bidirectional GRU classifies sequences, autocast to float16 with a GradScaler; Adam.
import torch
from torch import nn

batch_size = 128
length = 200
width = 512
layers = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(80, width, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, 30)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(self.norm(out).mean(dim=1))


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler()
for _ in range(2):
    x = torch.randn(batch_size, length, 80, device="cuda")
    y = torch.randint(0, 30, (batch_size,), device="cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
