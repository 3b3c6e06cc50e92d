"""What comes first of several causes and cures, and that the verdict on an error names the same."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

pytest.importorskip("torch")

SETUP = """\
import math
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
sgd = torch.optim.SGD(net.parameters())

def mib(n):
    return torch.zeros(int(n * 2**20), dtype=torch.uint8, device="cuda")
"""
LAYERS = "layers = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()\n"
STEPS = """\
for step in range(3):
    adam.zero_grad()
    layers(torch.randn(32, 1024, device="cuda")).pow(2).mean().backward()
    adam.step()
"""
SCORER = """\
widths = [256, 256, 256, 256, 900]
scorer = nn.Sequential(*[m for a, b in zip(widths, widths[1:]) for m in (nn.Linear(a, b), nn.Tanh())])
scorer.cuda()
"""
BLOCKS = """\
class Block(nn.Module):
    def __init__(self, d=256, h=8):
        super().__init__()
        self.h, self.q, self.k, self.v = h, nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (m(x).view(n, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(d // self.h)
        x = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)
        return self.o(x.transpose(1, 2).reshape(n, t, d))
"""
TAGGER = """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 1)
        self.hidden = None

    def forward(self, x):
        y, self.hidden = self.lstm(x, self.hidden)
        return self.out(y[:, -1])

tagger = Tagger().cuda()
"""
GATHER = """\
def gather(n):
    kept = []
    for i in range(n):
        work = mib(6 + i % 4)
        kept.append(mib(1.5))
        del work
"""
PIECES = """\
whole = mib(140)
del whole
gaps, walls = zip(*[(mib(24), mib(4)) for _ in range(5)])
del gaps
whole = mib(280)
"""
TRAINED = """\
mlp = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(512, 512), nn.ReLU())]).cuda()
adam = torch.optim.Adam(mlp.parameters())
for _ in range(2):
    loss = mlp(torch.randn(4096, 512, device="cuda")).square().mean()
    loss.backward()
    adam.step()
    adam.zero_grad()
"""
METRICS = """\
class Metric:
    def __init__(self):
        self.preds, self.targets = [], []

    def update(self, preds, targets):
        self.preds.append(preds)
        self.targets.append(targets)

    def compute(self):
        return torch.cat(self.preds).mean()

metrics = [Metric(), Metric()]

def total():
    for _ in range(300):
        out = net(torch.randn(512, 256, device="cuda"))
        for m in metrics:
            m.update(torch.sigmoid(out), torch.ones(64).cuda())
    return [m.compute() for m in metrics]
"""
POOL = """\
from concurrent.futures import ThreadPoolExecutor

@torch.no_grad()
def embed(i):
    return net(torch.randn(512, 256, device="cuda"))
"""
# earlier cells, cell, card, what the first advice says, what no advice says, what no verdict says
CELLS = {
    "the state that the first step makes": (
        (LAYERS + "adam = torch.optim.Adam(layers.parameters())",),
        STEPS,
        "130MiB",
        ("optimizer-state", "Memory ran out in the first step()"),
        (),
        (),
    ),
    "the state of an optimizer of the cell": (
        (LAYERS,),
        "adam = torch.optim.Adam(layers.parameters())\n" + STEPS,
        "150MiB",
        ("optimizer-state", "Memory ran out in the first step()"),
        ("bitsandbytes",),
        (),
    ),
    "one tensor that is too large, after others that no_grad spares": (
        (SCORER,),
        "scorer.eval()\nscores = scorer(torch.randn(31000, 256).cuda()).cpu().detach()",
        "200MiB",
        ("eval-is-not-no-grad", "torch.no_grad()"),
        (),
        ("nothing that could be freed",),
    ),
    "weights beside a list that grows": (
        ("wide = nn.Linear(1024, 1024).cuda()",),
        "outs = []\nwith torch.no_grad():\n    for _ in range(500):\n"
        "        outs.append(wide(torch.randn(256, 1024, device='cuda')))",
        "60MiB",
        ("growth", "outs[*]"),
        ("float32-inference",),
        (),
    ),
    "a state of two tensors": (
        (TAGGER,),
        "for _ in range(60):\n    loss = tagger(torch.randn(64, 50, 64, device='cuda')).mean()\n"
        "    loss.backward(retain_graph=True)",
        "90MiB",
        ("tagger.hidden[0..1] holds", "tuple(one.detach() for one in tagger.hidden)"),
        ("each entry",),
        (),
    ),
    "a list that grows until only pieces are left": (
        (GATHER,),
        "gather(1000)",
        "100MiB",
        ("growth", "kept[*] in gather()"),
        ("fragmentation",),
        ("pieces that are too small", "expandable_segments"),
    ),
    "gaps that are larger than what grew before": (
        (),
        PIECES,
        f"{5 * 28 + 168}MiB",
        ("fragmentation", "expandable_segments"),
        (),
        (),
    ),
    "a batch that leaves gaps": (
        (),
        TRAINED,
        "200MiB",
        ("activations",),
        (),
        ("pieces that are too small",),
    ),
    "blocks that are trained, beside a model as large": (
        (BLOCKS,),
        "blocks = nn.ModuleList(Block() for _ in range(3)).cuda()\n"
        "adam = torch.optim.SGD(blocks.parameters())\nx = torch.randn(2, 1024, 256).cuda()\n"
        "for b in blocks:\n    x = b(x)\nx.mean().backward()\nadam.step()",
        "250MiB",
        ("enlarged-result", "scores of attention"),
        ("frozen-layers-record",),
        (),
    ),
    "images that are enlarged": (
        (),
        "masks = torch.rand(60, 1, 56, 56, device='cuda')\n"
        "full = F.interpolate(masks, size=(1080, 1920), mode='bilinear')",
        "200MiB",
        ("enlarged-result", "upsample_bilinear2d makes [60, 1, 1080, 1920]"),
        (),
        (),
    ),
    "a column beside a row": (
        (),
        "y = torch.randn(9000, device='cuda')\npredicted = torch.randn(9000, 1, device='cuda')\n"
        "loss = (predicted - y).pow(2).mean()",
        "300MiB",
        ("enlarged-result", "one shape (.squeeze(1)"),
        (),
        (),
    ),
    "what one operator works with": (
        (),
        "numbers = torch.rand(6_000_000, device='cuda')\norder = numbers.argsort()",
        "150MiB",
        (),
        ("growth",),
        (),
    ),
    "a loss of the test set that is only printed": (
        (LAYERS,),
        "loss = (layers(torch.randn(6000, 1024, device='cuda')) ** 2).mean()\nprint(loss.item())",
        "140MiB",
        ("missing-no-grad",),
        (),
        (),
    ),
    "objects that hold each other": (
        ("ring = [mib(40)]\nring.append(ring)\ndel ring",),
        "x = mib(40)",
        "70MiB",
        ("earlier-cells", "no name leads to them", "%gpucheck --free"),
        (),
        (),
    ),
    "a replay buffer that training reads other parts of": (
        (),
        "memory = []\nfor _ in range(300):\n"
        "    s = torch.randn(512, 256, device='cuda')\n    memory.append((s, net(s)))\n"
        "    old, q = memory[0]\n    sgd.zero_grad()\n    net(old).mean().backward()\n    sgd.step()",
        "80MiB",
        ("growth", "memory[*]", ".detach()"),
        ("has gone through", "empty memory"),
        (),
    ),
    "pictures of a state that goes on": (
        ("square = nn.Sequential(nn.Linear(256, 256), nn.Tanh()).cuda()",),
        "x, frames = torch.randn(512, 256, device='cuda'), []\nfor _ in range(300):\n"
        "    x = x - square(x)\n    frames.append(x)",
        "60MiB",
        ("growth", "frames[*]", "x goes on from pass to pass, too"),
        ("kept-graph",),
        (),
    ),
    "metrics that a method updates": (
        (METRICS,),
        "total()",
        "60MiB",
        ("growth", "preds[*]"),
        ("kept-graph",),
        (),
    ),
    "what gradients with a graph hold of the input": (
        (),
        "for _ in range(300):\n    x = torch.randn(512, 256, device='cuda').requires_grad_()\n"
        "    net(x).pow(2).sum().backward(create_graph=True)\n"
        "    sgd.zero_grad()",
        "70MiB",
        ("growth", "create_graph=True", "torch.autograd.grad()"),
        (".cpu()",),
        (),
    ),
    "heads of attention are no rows of a batch": (
        (BLOCKS, "block = Block().cuda()"),
        "with torch.no_grad():\n    block(torch.randn(1, 4096, 256, device='cuda'))",
        "640MiB",
        ("enlarged-result", "scaled_dot_product_attention"),
        ("large-pass",),
        (),
    ),
    "what threads of a pool gave": (
        (POOL,),
        "with ThreadPoolExecutor(1) as pool:\n    found = list(pool.map(embed, range(200)))",
        "40MiB",
        ("growth", "what pool.map() in line 3 gave"),
        (),
        (),
    ),
}


@pytest.fixture
def uncollected():
    """No garbage is collected meanwhile."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("magic", ["%%gpucheck", "%%gpumem"])
@pytest.mark.parametrize(
    ("earlier", "cell", "card", "said", "not_said", "no_verdict"), CELLS.values(), ids=CELLS
)
def test_first_and_verdict_name_the_cause(
    earlier, cell, card, said, not_said, no_verdict, magic, predicted
):
    report = predicted(cell, card, (SETUP, *earlier), magic)
    assert report.oom is not None
    texts = [f"{one.rule} {one.problem} {one.change}" for one in report.advice]
    assert [words for words in said if not texts or words not in texts[0]] == []
    assert [words for words in not_said if words in " ".join(texts)] == []
    assert [words for words in no_verdict if words in report.text()] == []


def test_the_gradients_of_one_call_are_no_growth(predicted):
    quiet = Path(__file__).parents[1] / "quiet" / "second_order_gauss_newton_retain.py"
    setup, cell = quiet.read_text().split("# --- cell\n")
    report = predicted(cell, "90MiB", (SETUP, setup))
    assert "growth" not in {one.rule for one in report.advice}
