# %% ema | https://github.com/lucidrains/ema-pytorch
import torch
from ema_pytorch import EMA

net = torch.nn.Linear(512, 512).cuda()
ema = EMA(net, beta=0.9999, update_after_step=2, update_every=1).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(6):
    net(torch.randn(8, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.update()
ema_output = ema(torch.randn(1, 512, device="cuda"))
