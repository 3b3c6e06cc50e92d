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
