# %% mnist fully connected | https://spikingjelly.readthedocs.io/zh-cn/latest/activation_based_en/lif_fc_mnist.html
import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

net = nn.Sequential(
    layer.Flatten(),
    layer.Linear(28 * 28, 10, bias=False),
    neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan()),
).to("cuda")
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
img, label = torch.rand(64, 1, 28, 28, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
for _ in range(2):
    optimizer.zero_grad()
    fr = sum(net(img) for _ in range(16)) / 16
    loss = nn.functional.mse_loss(fr, nn.functional.one_hot(label, 10).float())
    loss.backward()
    optimizer.step()
    functional.reset_net(net)
