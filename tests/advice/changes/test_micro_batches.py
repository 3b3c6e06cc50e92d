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
        assessment = one.assess(_STEP.format(loss=loss), "activations")
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
        "h = model[0](x)\nz = model(x)\nloss = F.mse_loss(z, y)\nprint(h.mean())",
        "loss = F.mse_loss(model(x), y)\nloss = loss + 0.1 * loss ** 2",
    ],
)
def test_what_is_no_mean_over_samples_stays_whole(notebook, loss):
    assert not [advice for advice in pieces(notebook, loss) if advice.source]


_LANGUAGE_MODEL = """\
import torch, types
from torch import nn
import torch.nn.functional as F
class Model(nn.Module):
    __module__ = "transformers.models.tiny"
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 64), nn.Linear(2048, 512)
        self.body = nn.Sequential(nn.Linear(64, 2048), nn.GELU())
    def forward(self, input_ids, labels=None):
        logits = self.head(self.body(self.embed(input_ids)))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return types.SimpleNamespace(loss=loss, logits=logits)
torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.randint(0, 512, (16, 256)).cuda()
labels = ids.clone()
"""
_LANGUAGE_STEP = """\
losses = []
for step in range(2):
    out = model({given})
    optimizer.zero_grad()
    {loss}.backward()
    optimizer.step()
    losses.append({loss}.item())"""


def test_a_loss_of_an_output_is_the_mean_of_its_pieces(notebook):
    step = _LANGUAGE_STEP.format(given="ids, labels=ids", loss="out.loss")
    with notebook("T4") as one:
        one.run(_LANGUAGE_MODEL)
        assessment = one.assess(step, "activations")
        [advice] = [a for a in assessment.advice if a.rule == "activations" and "piece" in a.change]
        losses = []
        for source in (step, advice.source):
            one.run(_LANGUAGE_MODEL)
            result, text = one.run(source)
            assert result.success, text
            losses.append(one.shell.user_ns["losses"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert advice.saving > 0


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ("ids, labels=labels", "out.loss"),  # labels of -100 do not count
        ("ids, labels=ids", "out.logits.norm()"),
        ("ids, labels=ids", "(out.loss * out.logits.mean())"),
    ],
)
def test_parts_of_an_output_that_are_no_certain_mean_stay_whole(notebook, given, loss):
    with notebook("T4") as one:
        one.run(_LANGUAGE_MODEL)
        assessment = one.assess(_LANGUAGE_STEP.format(given=given, loss=loss), "activations")
    advice = [*assessment.advice, *assessment.useless]
    assert not [a for a in advice if a.source and ".chunk(" in a.source]
    assert [a for a in advice if a.source and "autocast" in a.source]


@pytest.mark.parametrize(
    "step",
    [
        "loss = F.mse_loss(model(x), y)\noptimizer.zero_grad()\nloss.backward()",
        "optimizer.zero_grad()\nloss = F.mse_loss(model(x), y)\nloss.backward()",
        "z = model(x)\noptimizer.zero_grad()\nloss = F.mse_loss(z, y)\nloss.backward()",
        "optimizer.zero_grad()\nF.mse_loss(model(x), y).backward()",
        "z = model(x)\noptimizer.zero_grad()\nF.mse_loss(\n    z,  # all\n    y,\n).backward()",
    ],
)
def test_pieces_add_up_wherever_gradients_are_cleared(notebook, step):
    step = f"{step}\noptimizer.step()"
    with notebook("T4") as one:
        one.run(_SETUP)
        assessment = one.assess(step, "activations")
        [advice] = [a for a in assessment.advice if " pieces " in a.change]
        weights = []
        for source in (step, advice.source):
            one.run("torch.manual_seed(0)\n" + _SETUP)
            one.run(source)
            weights.append(one.shell.user_ns["model"][0].weight.detach().cpu())
    assert (weights[0] - weights[1]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "between", ["for p in model:\n    p.zero_grad()", "g = model[0].weight.grad"]
)
def test_gradients_are_not_looked_at_in_every_piece(notebook, between):
    advice = pieces(notebook, f"loss = F.mse_loss(model(x), y)\n{between}")
    assert advice
    assert not any(one.source for one in advice)


_TRAIN = """\
def train(loader, model, loss_fn, optimizer):
    losses = []
    for inputs, targets in loader:
        loss = loss_fn(model(inputs.to(x.device)), targets.cuda())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses
loss_fn = nn.MSELoss()
losses = train([(x.cpu(), y.cpu()), (x, y)], model, loss_fn, optimizer)"""


def test_a_function_that_trains_is_written_out(notebook):
    told = []
    with notebook("T4") as one:
        one.run(_SETUP)
        advice = one.assess(_TRAIN, "activations").advice
        sources = [a.source for a in advice if " pieces " in a.change or "autocast" in a.change]
        for source in (_TRAIN, *sources):
            one.run("torch.manual_seed(0)\n" + _SETUP)
            one.run(source)
            told.append(one.shell.user_ns["losses"])
    assert [("chunk" in source, "scaler.update()" in source) for source in sources] == [
        (True, False),
        (False, True),
    ]
    assert all(losses == pytest.approx(told[0], rel=2e-3) for losses in told)


_SCORED = """\
out = model(x)
loss = F.mse_loss(out, y)
near = (out - y).abs().sum().item()
optimizer.zero_grad()
loss.backward()
optimizer.step()
scores = out.argmax(1).float().sum().item(), near, loss.item()"""


def test_outputs_that_are_read_later_are_put_together(notebook):
    with notebook("T4") as one:
        one.run(_SETUP)
        [advice] = [a for a in one.assess(_SCORED, "activations").advice if " pieces " in a.change]
        found = []
        for source in (_SCORED, advice.source):
            one.run("torch.manual_seed(0)\n" + _SETUP)
            one.run(source)
            found.append(one.shell.user_ns["scores"])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
