"""Tables of relative positions, whose rows are looked up for every pair; and gaps on small cards."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
LOOKUP = (
    "table = torch.randn(1024, 64, device='cuda')\nplace = torch.arange(512).cuda()\n"
    "bias = table[place[:, None] - place + 512]\nscores = (bias * table[:512, None]).sum(-1)"
)
CHARACTERS = (
    "table = nn.Embedding(65, 384).cuda()\nids = torch.randint(65, (64, 512), device='cuda')\n"
    "with torch.no_grad():\n    hidden = table(ids)\n    total = hidden.sum().item()"
)


@pytest.mark.parametrize("card", ["T4", "50MiB"])
def test_a_row_for_every_pair_is_told(predicted, card):
    first, *_ = predicted(LOOKUP, card, (SETUP,)).advice
    assert first.rule == "enlarged-result"
    assert "for every pair of positions" in first.change


def test_embeddings_of_few_characters_are_no_pairs(predicted):
    found = predicted(CHARACTERS, "T4", (SETUP,))
    assert [one.rule for one in found.advice] == []


def test_the_rest_of_one_segment_is_no_fragmentation(predicted):
    net = "net = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 512)).cuda()"
    cell = (
        "sgd = torch.optim.SGD(net.parameters())\nx = torch.randn(2048, 512).cuda()\n"
        "sgd.zero_grad()\nnet(x).mean().backward()\nsgd.step()"
    )
    found = predicted(cell, "60MiB", (SETUP, net))
    assert "fragmentation" not in [one.rule for one in found.advice]
