"""Training loops that look like a mistake and are none, and changes that cannot be written out."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.values.advice import Example  # noqa: E402

SETUP = """\
import torch
from torch import nn, optim
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).cuda()
data = [(torch.randn(256, 512, device="cuda"), torch.randn(256, 512, device="cuda"))] * 4
big = torch.randn(4096, 512, device="cuda")
opt = optim.SGD(model.parameters(), lr=1e-3)
def clear(optimizer):
    optimizer.zero_grad()
"""

QUIET = {
    "a plain loop": """\
for x, y in data:
    loss = F.mse_loss(model(x[:16]), y[:16])
    opt.zero_grad()
    loss.backward()
    opt.step()""",
    "an evaluation after each step": """\
for x, y in data:
    opt.zero_grad()
    F.mse_loss(model(x), y).backward()
    opt.step()
    with torch.no_grad():
        value = model(big).mean().item()""",
    "accumulation": """\
for i, (x, y) in enumerate(data):
    (F.mse_loss(model(x), y) / 2).backward()
    if i % 2:
        opt.step()
        opt.zero_grad(set_to_none=False)""",
    "never cleared, but a step only now and then": """\
for i, (x, y) in enumerate(data):
    F.mse_loss(model(x), y).backward()
    if i == 3:
        opt.step()
model.zero_grad()""",
    "cleared by a function of another cell": """\
for x, y in data:
    clear(opt)
    F.mse_loss(model(x), y).backward()
    opt.step()
clear(opt)""",
    "cleared by hand": """\
for x, y in data:
    F.mse_loss(model(x), y).backward()
    opt.step()
    for p in model.parameters():
        p.grad = None""",
    "one step": """\
F.mse_loss(model(data[0][0]), data[0][1]).backward()
opt.step()
opt.zero_grad()""",
    "gradients looked at after the step": """\
for x, y in data[:2]:
    F.mse_loss(model(x), y).backward()
    opt.step()
norms = [p.grad.norm().item() for p in model.parameters()]
with torch.no_grad():
    value = model(big).mean()
model.zero_grad()""",
    "back through time": """\
h, loss = torch.zeros(256, 512, device="cuda"), 0
for x, y in data:
    h = model(x + h)
    loss = loss + F.mse_loss(h, y)
loss.backward()
opt.step()
opt.zero_grad()""",
    "losses of one graph": """\
features, loss = model(big), 0
for part in features.chunk(4):
    loss += part.square().mean()
loss.backward()
opt.step()
opt.zero_grad()""",
    "a loss of all batches together": """\
outputs = []
for x, y in data:
    outputs.append(model(x))
z = torch.cat(outputs)
(z @ z.T).square().mean().backward()
opt.step()
opt.zero_grad()""",
}
MISTAKES = ("gradients-kept", "missing-zero-grad", "gradient-accumulation-wrong")


@pytest.mark.parametrize("cell", QUIET.values(), ids=QUIET)
def test_what_only_looks_like_a_mistake(notebook, cell):
    with notebook("T4") as one:
        one.set_up(Example("", "", setup=SETUP))
        found = one.measure(cell).advice
    assert [advice.problem for advice in found if advice.rule in MISTAKES] == []


def test_gradients_cleared_by_hand_are_let_go_by_hand(notebook):
    cell = """\
for x, y in data * 2:
    loss = F.softplus(model(x)).mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 1e-3 * p.grad
            if p.grad is not None:
                p.grad.zero_()  # for the next round"""
    with notebook("T4") as one:
        one.set_up(Example("", "", setup=SETUP))
        (advice,) = one.assess(cell, "gradients-kept").advice
    assert advice.source.endswith(cell.replace("p.grad.zero_()", "p.grad = None"))
    assert advice.line == 8
    assert advice.size == 6 * (1 << 20) + 6 * 2048


def test_gradients_of_another_model_are_not_what_the_change_frees(notebook):
    setup = (
        SETUP
        + """\
other = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).cuda()
adam = optim.Adam(model.parameters())
model(other(big)).mean().backward()
adam.step()
"""
    )
    cell = "with torch.no_grad():\n    value = model(big).mean().item()"
    with notebook("T4") as one:
        one.set_up(Example("", "", setup=setup))
        (advice,) = one.assess(cell, "gradients-kept").advice
    assert "Call adam.zero_grad() before line 1" in advice.change
    assert advice.size == 6 * (1 << 20) + 6 * 2048  # of the model alone
    assert advice.before - advice.after == advice.size


def test_a_list_that_still_grows_does_not_tell_its_length(notebook):
    cell = """\
losses = []
for i, (x, y) in enumerate(data):
    losses.append(F.mse_loss(model(x), y))
loss = sum(losses) / len(losses)
loss.backward()
opt.step()
opt.zero_grad()"""
    setup = SETUP.replace("randn(256", "randn(2048")
    with notebook("T4") as one:
        one.set_up(Example("", "", setup=setup))
        found = one.measure(cell).advice
    (advice,) = (a for a in found if a.rule == "gradient-accumulation-wrong")
    assert "(batch_loss / len(data)).backward()" in advice.source
    assert "the graphs of 4 batches" in advice.problem


def test_an_optimizer_with_a_scheduler_is_not_taken_apart(notebook):
    cell = """\
adam = optim.Adam(model.parameters(), 1e-4, amsgrad=True)
plan = optim.lr_scheduler.StepLR(adam, 1)
for x in [big[:8], big[8:16]]:
    adam.zero_grad()
    model(x).square().mean().backward()
    adam.step()
    plan.step()"""
    setup = (
        SETUP.replace("range(6)", "range(24)").replace("4096", "16").replace("randn(256", "randn(8")
    )
    with notebook("T4") as one:
        one.set_up(Example("", "", setup=setup))
        found = one.assess(cell)
    by_rule = {a.rule: a for a in (*found.advice, *found.useless)}
    apart = by_rule["step-in-backward"]
    assert apart.source is None
    assert "adam is used for more than its step" in apart.change
    # AND the optimizer's alternatives were all measured, none failed, alone or with others
    assert found.failed == ()
    sources = [a.source for a in found.advice if a.rule == "optimizer-state" and a.source]
    firsts = {source.split("\n")[0] for source in sources}
    assert firsts == {
        "adam = optim.Adam(model.parameters(), 1e-4)",
        "adam = optim.SGD(model.parameters(), 1e-4, momentum=0.9)",
        "adam = optim.Adafactor(model.parameters(), 1e-4)",
    }
