# %% spiking network | https://snntorch.readthedocs.io/en/latest/quickstart.html
import snntorch as snn
import torch
from snntorch import surrogate
from torch import nn

spike_grad = surrogate.fast_sigmoid(slope=25)
net = nn.Sequential(
    nn.Flatten(),
    nn.Linear(784, 1000),
    snn.Leaky(beta=0.95, spike_grad=spike_grad, init_hidden=True),
    nn.Linear(1000, 10),
    snn.Leaky(beta=0.95, spike_grad=spike_grad, init_hidden=True, output=True),
).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
x, y = torch.randn(128, 1, 28, 28, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
from snntorch import utils

utils.reset(net)
spikes = []
for _ in range(25):
    spk, mem = net(x)
    spikes.append(mem)
loss = sum(nn.functional.cross_entropy(mem, y) for mem in spikes)
optimizer.zero_grad()
loss.backward()
optimizer.step()
