"""A graph that two backward passes want: what led to it, and cures that run."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()).cuda()
one, two = nn.Linear(64, 1).cuda(), nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *one.parameters(), *two.parameters()], lr=0.1)
data = torch.randn(4, 128, 64)
"""
SUMMED = """\
total = 0
for x in data:
    total = total + one(body(x.cuda())).pow(2).mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
"""
STEP_BETWEEN = """\
for x in data:
    shared = body(x.cuda())
    first = one(shared).pow(2).mean()
    second = two(shared).pow(2).mean()
    first.backward()
    optimizer.step()
    second.backward()
"""
MADE_ONCE = """\
scale = (body[0].weight * 2).tanh()
for x in data:
    optimizer.zero_grad()
    one(body(x.cuda()) @ scale).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def asked(notebook):
    def asked(cell):
        with notebook() as one:
            result, said = one.run(SETUP)
            assert result.success, said
            return one.assess(cell)

    return asked


def told(assessment):
    return [one for one in assessment.advice if one.rule == "graph-used-twice"]


def test_a_cure_was_run(asked):
    assessment = asked(SUMMED)
    (advice,) = told(assessment)
    assert advice.name == "total"
    assert "    total = total.detach()\n" in advice.source
    assert assessment.runs > 1
    assert not assessment.failed


def test_a_cure_that_fails_is_not_shown(asked):
    broken = asked(SUMMED.replace("optimizer.step()", "optimizer.step()\n    total.grad_fn.name()"))
    assert not told(broken)
    assert [rule for rule, _ in broken.failed] == ["graph-used-twice"]


def test_losses_with_a_step_between_are_not_summed(asked):
    (advice,) = told(asked(STEP_BETWEEN))
    assert advice.source is None
    assert "shared" in advice.problem


def test_what_is_made_once_is_not_detached_in_the_loop(asked):
    (advice,) = told(asked(MADE_ONCE))
    assert advice.name == "scale"
    assert advice.source is None


def test_an_error_of_the_users_own_is_none(asked):
    cell = "raise RuntimeError('cannot go backward through the graph a second time')"
    assert not told(asked(cell))
