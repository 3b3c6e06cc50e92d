# LSTM and GRU in bfloat16 on a card without it in cuDNN; AdamW.
import torch
import torch.nn as nn

batch_size = 32
steps = 40
width = 256


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rnn = nn.LSTM(width, width, 2, batch_first=True)
        self.gru = nn.GRU(width, width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        return self.out(self.gru(self.norm(self.rnn(x)[0]))[0].mean(1))


model = Net(width).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(2):
    x = torch.randn(batch_size, steps, width, device="cuda", dtype=torch.bfloat16)
    loss = nn.functional.cross_entropy(
        model(x).float(), torch.zeros(batch_size, dtype=torch.long, device="cuda")
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
