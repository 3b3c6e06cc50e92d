# %% ema | https://github.com/fadel/pytorch_ema
import torch
from torch_ema import ExponentialMovingAverage

model = torch.nn.Linear(1000, 200).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ema = ExponentialMovingAverage(model.parameters(), decay=0.995)
for _ in range(20):
    logits = model(torch.rand(100, 1000, device="cuda"))
    loss = torch.nn.functional.cross_entropy(logits, torch.randint(0, 200, (100,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update()
with ema.average_parameters():
    logits = model(torch.rand(100, 1000, device="cuda"))
