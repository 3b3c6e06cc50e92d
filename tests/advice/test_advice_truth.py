"""What is said is true, in code of any shape, run and predicted: of gradients that are needed, of
what would have left room, of what waits for a backward pass, of gaps, of other models' memory."""

from __future__ import annotations

import textwrap

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.values.findings import Way  # noqa: E402 - needs torch for what it is tested with

MIB = 1 << 20
SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

def mib(n):
    return torch.zeros(int(n * 2**20), dtype=torch.uint8, device="cuda")
"""


def in_shape(body, shape):
    """The body as it is, in a function, or in a method."""
    if shape == "flat":
        return body
    function = f"def run():\n{textwrap.indent(body, '    ')}"
    if shape == "function":
        return f"{function}\nrun()\n"
    method = textwrap.indent(function.replace("run()", "run(self)"), "    ")
    return f"class Runner:\n{method}\nRunner().run()\n"


@pytest.fixture
def failed(notebook):
    """The report of a cell that runs out of memory, run or predicted."""

    def failed(cell, card, way, *earlier):
        with notebook(card) as one:
            for text in (SETUP, *earlier):
                result, said = one.run(text)
                assert result.success, said
            if way == "predicted":
                one.run(f"%%gpucheck -o _report\n{cell}")
                report = one.shell.user_ns["_report"]
            else:
                report = one.measure(cell)
        assert report.oom is not None
        return report

    return failed


ways = pytest.mark.parametrize("way", ["run", "predicted"])
shapes = pytest.mark.parametrize("shape", ["flat", "function", "class"])


@ways
@shapes
def test_gradients_that_a_first_step_reads_neither_go_nor_grow(failed, shape, way):
    model = "model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()"
    body = """\
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(8, 1024, device="cuda")
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
    report = failed(in_shape(body, shape), "160MiB", way, model)
    assert "step" in report.cell.source.splitlines()[report.oom.line - 1]
    assert report.oom.remedy(Way.GRADIENTS) is None
    assert "growth" not in [advice.rule for advice in report.advice]
    assert "zero_grad()" not in "".join(advice.change for advice in report.advice)


@ways
def test_a_remedy_says_how_much_further_the_cell_gets(failed, way):
    """Exactly so far: without it, memory runs out later by what it leaves."""
    cell = "".join(f"t{i} = mib({size})\n" for i, size in enumerate((40, 10, 24, 26, 10)))
    report = failed(cell, "100MiB", way, "left = mib(40)")
    remedy = report.oom.remedy(Way.UNUSED)
    assert (remedy.name, remedy.enough) == ("left", True)
    assert report.oom.left_by(remedy) == 26 * MIB
    assert "finds at most 26.00 MiB free" in " ".join(str(report).split())
    without = failed(f"del left\n{cell}", "100MiB", way, "left = mib(40)").oom
    reached = sum(report.oom.held.values()) - remedy.size
    assert sum(without.held.values()) - reached == 26 * MIB + report.oom.requested


OTHERS = """\
def layers(n):
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(n)]).cuda()

x = torch.randn(8, 512, device="cuda")
other, model = layers(24), layers(3)
adam = torch.optim.Adam(other.parameters())
other(x).sum().backward()
adam.step()
"""


@shapes
def test_memory_of_models_that_a_cell_does_not_train_is_not_its_optimizers(notebook, shape):
    body = """\
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    with notebook("T4") as one:
        one.run(SETUP)
        one.run(OTHERS)
        found = one.assess(in_shape(body, shape))
    assert found.report.error is None
    told = {advice.rule for advice in (*found.advice, *found.useless)}
    assert not told & {"optimizer-state", "step-in-backward"}


NEEDED_TWICE = {
    "features above the loop": (
        "features = torch.tanh(first(x))\nfor _ in range(3):\n"
        "    loss = last(features).pow(2).mean()\n    loss.backward(retain_graph=True)\n"
    ),
    "features of the notebook in a function": (
        "features = torch.tanh(first(x))\n\ndef train():\n    for _ in range(3):\n"
        "        loss = last(features).pow(2).mean()\n        loss.backward(retain_graph=True)\n\n"
        "train()\n"
    ),
    "features passed to a function": (
        "def train(features):\n    for _ in range(3):\n"
        "        loss = last(features).pow(2).mean()\n        loss.backward(retain_graph=True)\n\n"
        "train(torch.tanh(first(x)))\n"
    ),
    "features of an object": (
        "class Trainer:\n    def __init__(self):\n        self.features = torch.tanh(first(x))\n\n"
        "    def step(self):\n        loss = last(self.features).pow(2).mean()\n"
        "        loss.backward(retain_graph=True)\n\n"
        "trainer = Trainer()\nfor _ in range(3):\n    trainer.step()\n"
    ),
    "features of an earlier cell": (
        "for _ in range(3):\n    loss = last(earlier).pow(2).mean()\n"
        "    loss.backward(retain_graph=True)\n    last.zero_grad()\n"
    ),
    "a state that goes on in a dictionary": (
        "state = {'h': torch.zeros_like(x)}\n\ndef step():\n"
        "    state['h'] = torch.tanh(first(x + state['h']))\n    loss = state['h'].pow(2).mean()\n"
        "    loss.backward(retain_graph=True)\n\nfor _ in range(3):\n    step()\n"
    ),
    "losses in a list": (
        "h = torch.tanh(first(x))\nlosses = [last(h).mean(), h.pow(2).mean(), h.abs().mean()]\n"
        "for loss in losses:\n    loss.backward(retain_graph=True)\n"
    ),
    "losses that a helper takes": (
        "def back(loss):\n    loss.backward(retain_graph=True)\n\nh = torch.tanh(first(x))\n"
        "back(h.pow(2).mean())\nback(h.abs().mean())\n"
    ),
}


@pytest.mark.parametrize("cell", NEEDED_TWICE.values(), ids=NEEDED_TWICE)
def test_a_graph_that_is_needed_twice_is_not_told_to_go(notebook, cell):
    with notebook("T4") as one:
        one.run(SETUP)
        one.run("first, last = (nn.Linear(256, 256).cuda() for _ in range(2))")
        one.run("x = torch.randn(4096, 256, device='cuda')\nearlier = torch.tanh(first(x))")
        report = one.measure(cell)
    assert report.error is None
    assert "retained-graph" not in [advice.rule for advice in report.advice]


KEPT = {
    "outputs in a list": "kept.append(out.detach())",
    "copies in an object": "metric.update(out.detach().clone())",
    "a bank": "loss = loss + sum(F.mse_loss(out, one) for one in bank[:2])",
    "targets by number": "loss = loss + F.mse_loss(out, targets[0])",
}
STATE = """\
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(60, 1024, 256)

class Metric:
    def __init__(self):
        self.seen = []

    def update(self, output):
        self.seen.append(output)

metric = Metric()
"""


@ways
@pytest.mark.parametrize("kept", KEPT)
def test_what_is_kept_without_a_graph_waits_for_no_backward_pass(failed, kept, way):
    number = list(KEPT).index(kept) % 3
    shape = ("flat", "function", "class")[number]
    body = f"""\
kept = []
with torch.no_grad():
    bank = [model(x.cuda()) for x in data[:{24 if kept == "a bank" else 1}]]
    targets = {{i: model(x.cuda()) for i, x in enumerate(data[:{24 if "targets" in kept else 1}])}}
for x in data:
    x = x.cuda()
    out = model(x)
    loss = F.mse_loss(out, x)
    {KEPT[kept]}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    report = failed(in_shape(body, shape), "50MiB", way, STATE)
    told = [advice for advice in report.advice if advice.rule == "activations"]
    assert all(advice.size <= 12 * MIB for advice in told), [advice.size for advice in told]


def test_gaps_are_the_cause_where_all_that_is_free_in_one_piece_would_do(failed):
    """Gaps of 5 x 24 MiB and 168 MiB beside them: 280 fit, as one piece; 300 do not."""
    gaps = "whole = mib(140)\ndel whole\n"
    gaps += "gaps, walls = zip(*[(mib(24), mib(4)) for _ in range(5)])\ndel gaps\n"
    told = {}
    for size in (200, 280, 300):
        card = f"{5 * 28 + 168}MiB"
        report = failed(f"{gaps}whole = mib({size})\n", card, "run")
        told[size] = (report.oom.is_in_pieces, [a.rule for a in report.advice])
    for size, (in_pieces, rules) in told.items():
        assert in_pieces == ("fragmentation" in rules) == (size < 300)


@shapes
def test_a_leak_that_ends_among_gaps_is_not_blamed_on_them(failed, shape):
    body = """\
kept = []
for n in range(1000):
    work = mib(6 + n % 4)
    kept.append(mib(1.5))
    del work
"""
    report = failed(in_shape(body, shape), "100MiB", "run")
    assert report.advice[0].rule == "growth"
    assert "fragmentation" not in [a.rule for a in report.advice]


TOO_LARGE = {
    "zeros": ("x = torch.zeros(100, 2**20, device='cuda')", (100, 2**20), "numbers of its shape"),
    "all pairs": ("x = torch.zeros(6000, 8, device='cuda')\nx @ x.T", (6000, 6000), "some rows"),
    "differences": (
        "x = torch.zeros(2000, 8, device='cuda')\n(x[:, None] - x[None]).sum()",
        (2000, 2000, 8),
        "shapes were broadcast",
    ),
    "copies": ("torch.ones(1, 2**20, device='cuda').repeat(40, 1)", (40, 2**20), "expand()"),
    "scores": (
        "head = nn.Linear(8, 20_000).cuda()\nx = torch.zeros(2_000, 8, device='cuda')\nhead(x)",
        (2_000, 20_000),
        "only those that are needed",
    ),
    "data": ("x = torch.zeros(40, 2**20).cuda()", (40, 2**20), "one batch at a time"),
}


@ways
@pytest.mark.parametrize(("cell", "shape", "cure"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_of_one_tensor_larger_than_the_card_no_names_to_delete_are_told(
    failed, cell, shape, cure, way
):
    report = failed(cell, "100MiB", way, "left = mib(30)")
    text = " ".join(str(report).split())
    assert (report.oom.shape, report.oom.too_large) == (shape, True)
    assert f"of shape {[*shape]} wants" in text
    assert "nothing that could be freed makes it fit. What makes it smaller:" in text
    assert cure in text
    assert "left" not in "".join(advice.change for advice in report.advice)
    assert not report.oom.remedies


@ways
@pytest.mark.parametrize(("size", "too_large"), [(75, True), (65, False)])
def test_of_one_tensor_larger_than_deleting_all_leaves_no_names_are_told(
    failed, size, too_large, way
):
    report = failed(f"x = mib({size})\nused[:1]", "100MiB", way, "left, used = mib(10), mib(30)")
    assert report.oom.too_large == too_large
    assert bool(report.oom.remedies) != too_large


NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1024, 1024) for _ in range(6)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

class Trainer:
    def __init__(self):
        self.model = Net().cuda()

x = torch.randn(8, 1024, device="cuda")
"""
MODELS = {
    "of an object": "trainer = Trainer()\nmodel = trainer.model\ndel model\n",
    "in a dictionary": "nets = {'g': nn.Sequential(*Net().layers).cuda()}\n",
    "of a function": (
        "def train():\n    model = nn.Sequential(*Net().layers).cuda()\n"
        "    model(x).square().mean().backward()\n    return mib(50)\n\ntrain()\n"
    ),
    "made on the device": "with torch.device('cuda'):\n    trainer = Trainer()\n",
}


@ways
@pytest.mark.parametrize("made", MODELS.values(), ids=MODELS)
def test_the_layers_of_one_model_are_no_growth(failed, made, way):
    report = failed(f"{made}big = mib(50)\n", "60MiB", way, NET)
    assert "growth" not in [advice.rule for advice in report.advice]


@ways
def test_models_that_a_loop_piles_up_are_growth(failed, way):
    cell = "models = []\nfor fold in range(9):\n    models.append(Net().cuda())\n"
    report = failed(cell, "110MiB", way, NET)
    assert report.advice[0].rule == "growth"
    assert "models[*]" in report.advice[0].problem
