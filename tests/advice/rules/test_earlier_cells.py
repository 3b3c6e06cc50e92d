"""What the rule's examples cannot show: when what earlier cells hold is no matter."""

from __future__ import annotations

BIG = "import torch\nxs = [torch.empty(1 << 26, device='cuda') for _ in range(14)]"


def rules(report):
    return [advice.rule for advice in report.advice]


def test_a_cell_that_only_lets_go_needs_no_room(notebook):
    with notebook("4GiB") as one:
        one.run(BIG)
        assert "earlier-cells" in rules(one.measure("y = torch.empty(1 << 20, device='cuda')"))
        assert rules(one.measure("xs = None")) == []


LOSS = """\
import torch
from torch import nn
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
adam = torch.optim.Adam(model.parameters())
x = torch.randn(2048, 512, device="cuda")
loss = model(x).pow(2).mean()"""


def test_what_the_graph_of_a_loss_may_hold_is_used_by_its_backward_pass(notebook):
    with notebook("64MiB") as one:
        one.run(LOSS)
        report = one.measure("loss.backward()\nadam.step()")
        assert report.oom is not None
        assert "earlier-cells" not in rules(report)
