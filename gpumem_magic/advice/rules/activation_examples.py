"""Training steps whose peak is their activations, each with one of the changes."""

from __future__ import annotations

from gpumem_magic.values.advice import Example

_BLOCKS = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = nn.Linear(width, width)
        self.tanh = nn.Tanh()
    def forward(self, x):
        return x + self.tanh(self.layer(self.norm(x)))
model = nn.Sequential(*[Block(256) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
data = torch.randn(10, 2048, 256, device="cuda")
x, y = data[:2]
"""

_STEPS = """\
for step in range(2):
    optimizer.zero_grad()
    output = model(x)
    loss = F.mse_loss(output, y)  # compared with the target
    loss.backward()
    optimizer.step()
weight = model[0].layer.weight"""


_NET = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
data = torch.randn(8, 2048, 256, device="cuda")
x = data[0]
y = torch.randint(0, 256, (2048,), device="cuda")
"""

_CLASSES = """\
class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + F.gelu(self.norm(self.up(x)))

class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

net = Net(256, 4).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for epoch in range(2):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
final = loss.detach()
weight = net.layers[0].up.weight"""

_LEAKY = """\
net = nn.Sequential(
    nn.Linear(256, 256), nn.LeakyReLU(0.1),  # one
    nn.Linear(256, 256), nn.LeakyReLU(0.1),
    nn.Linear(256, 256), nn.LeakyReLU(0.1),
    nn.Linear(256, 256), nn.LeakyReLU(0.1),
    nn.Linear(256, 256), nn.LeakyReLU(0.1),
    nn.Linear(256, 256), nn.LeakyReLU(0.1),
    nn.Linear(256, 256), nn.LeakyReLU(0.1),
    nn.Linear(256, 256),
).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
for step in range(2):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
weight = net[0].weight"""

EXAMPLES = (
    Example(
        setup=_BLOCKS,
        card="A100-40GB",
        before=_STEPS,
        after=_STEPS.replace(
            """\
    output = model(x)
    loss = F.mse_loss(output, y)  # compared with the target
""",
            """\
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(x)
        loss = F.mse_loss(output, y)  # compared with the target
""",
        ),
        results=("loss",),
        within=0.02,
    ),
    Example(
        setup=_NET,
        before=_CLASSES,
        after="from torch.utils.checkpoint import checkpoint\n"
        + _CLASSES.replace("x = layer(x)", "x = checkpoint(layer, x, use_reentrant=False)"),
        results=("final", "weight"),
    ),
    Example(
        setup=_BLOCKS,
        before=_STEPS,
        after="""\
for step in range(2):
    optimizer.zero_grad()
    loss = 0.0
    for x_, y_ in zip(x.chunk(4), y.chunk(4)):
        output = model(x_)
        loss_ = F.mse_loss(output, y_) * (len(x_) / len(x))  # compared with the target
        loss_.backward()
        loss += loss_.detach()
    optimizer.step()
weight = model[0].layer.weight""",
        results=("loss", "weight"),
    ),
    Example(
        setup=_NET,
        before=_LEAKY,
        after=_LEAKY.replace("nn.LeakyReLU(0.1),", "nn.LeakyReLU(0.1, inplace=True),"),
        results=("loss", "weight"),
    ),
    Example(
        setup=_BLOCKS,
        before=_STEPS.replace("range(2)", "range(3)"),
        after=_STEPS.replace("range(2)", "range(3)").replace(
            """\
    output = model(x)
    loss = F.mse_loss(output, y)  # compared with the target
""",
            """\
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        output = model(x)
        loss = F.mse_loss(output, y)  # compared with the target
""",
        ),
        results=("loss", "weight"),
    ),
)
