"""Training steps whose graph leads through layers that they do not train, and what they become."""

from gpumem_magic.advice.rule import mended
from gpumem_magic.values.advice import Example

_CLASS = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(6)]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(768, 10)

    def forward(self, x):
        return self.head(self.backbone(x))

model = Classifier().cuda()
x = torch.randn(2048, 768, device="cuda")
labels = torch.randint(0, 10, (2048,), device="cuda")
"""
_TWO = """\
import torch
from torch import nn
torch.manual_seed(0)
encoder = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8)]).cuda()
probe = nn.Linear(512, 10).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(probe.parameters(), lr=1e-3)
batches = [(torch.randn(1024, 512).cuda(), torch.randint(0, 10, (1024,)).cuda()) for _ in range(2)]
"""
_TUNING = """\
optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
{freeze}for step in range(2):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), labels)
    loss.backward()
    optimizer.step()
last = loss.item()"""
_PROBING = """\
def train_epoch(batches):
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = criterion(probe(encoder(inputs)), labels)
        loss.backward()
        optimizer.step()
    return loss.item()

{freeze}last = train_epoch(batches)"""
_GAN = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(6)]).cuda()
D = nn.Sequential(nn.Linear(512, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
noise = torch.randn(2, 2048, 512, device="cuda")
"""
_STEPS = """\
for z in noise:
    fake = G(z)
    opt_d.zero_grad()
    F.softplus(D(fake)).mean().backward(retain_graph=True)
    opt_d.step()
    opt_g.zero_grad()
    loss = F.softplus(-D(fake)).mean()
    loss.backward()
    opt_g.step()
last = loss.item()"""

EXAMPLES = (
    Example(
        setup=_CLASS,
        before=_TUNING.format(freeze=""),
        after=_TUNING.format(freeze="model.backbone.requires_grad_(False)\n"),
        results=("last",),
    ),
    Example(
        setup=_TWO,
        before=_PROBING.format(freeze=""),
        after=_PROBING.format(freeze="encoder.requires_grad_(False)\n"),
        results=("last",),
    ),
    mended(
        (
            "F.softplus(D(fake)).mean().backward(retain_graph=True)",
            "F.softplus(D(fake.detach())).mean().backward()",
        ),
        setup=_GAN,
        before=_STEPS,
        rewritten=False,
        results=("last",),
    ),
)
