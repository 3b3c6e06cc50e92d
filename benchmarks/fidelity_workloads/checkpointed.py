# Deep residual blocks, every one recomputed in the backward pass; dropout inside; SGD.
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

batch_size = 4096
hidden = 1024
depth = 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(),
            nn.Dropout(0.1), nn.Linear(4 * hidden, hidden),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x)


blocks = nn.ModuleList(Block() for _ in range(depth)).cuda()
head = nn.Linear(hidden, 10).cuda()
optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.1)
for _ in range(2):
    x = torch.randn(batch_size, hidden, device="cuda")
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if i % 4 else block(x)
    loss = head(x).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
