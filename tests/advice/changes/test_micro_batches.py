"""Where a batch must not be taken in pieces, and where other changes cannot be written."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

_SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
model = nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4096, 64, device="cuda")
y = torch.randn(4096, 64, device="cuda")
"""
_STEP = """\
{loss}
optimizer.zero_grad()
loss.backward()
optimizer.step()"""


def pieces(notebook, loss):
    """The advice to take the batch in pieces, of one step with this loss."""
    with notebook("T4") as one:
        result, text = one.run(_SETUP)
        assert result.success, text
        assessment = one.assess(_STEP.format(loss=loss))
        advice = [*assessment.advice, *assessment.useless]
        return [a for a in advice if a.rule == "activations" and " pieces " in a.change]


def test_a_mean_over_samples_is_taken_in_pieces(notebook):
    [advice] = pieces(notebook, "loss = F.mse_loss(model(x), y)")
    assert "for x_, y_ in zip(x.chunk(4), y.chunk(4)):" in advice.source
    assert "loss += loss_.detach()" in advice.source


@pytest.mark.parametrize(
    "loss",
    [
        "loss = F.mse_loss(model(x), y, reduction='sum')",
        "z = model(x)\nloss = F.mse_loss(z @ z.T, x @ x.T)",
        "loss = F.mse_loss(model(x), torch.randn_like(y))",
        "loss = F.mse_loss(model(x)[:8], y[:8])",
        "z = model(x)\nloss = F.mse_loss(z, y)\nprint(z.mean())",
        "loss = F.mse_loss(model(x), y)\nloss = loss + 0.1 * loss ** 2",
    ],
)
def test_what_is_no_mean_over_samples_stays_whole(notebook, loss):
    assert not [advice for advice in pieces(notebook, loss) if advice.source]
