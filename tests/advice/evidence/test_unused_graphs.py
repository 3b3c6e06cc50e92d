"""Rules about graphs are silent where a backward pass uses, or may yet use, what was recorded."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.definitions import Definitions
from gpumem_magic.advice.evidence.gradient_flow import GradientFlow
from gpumem_magic.values.advice import Example
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Cell

SETUP = """\
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(4)]).cuda()
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(2048, 512, device="cuda")
"""
STEP = "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
RULES = {"missing-no-grad", "eval-is-not-no-grad", "kept-graph", "retained-graph"}

QUIET = {
    "a step of named parts": f"for b in x.split(1024):\n    out = model(b)\n"
    f"    scaled = out * 2.0\n    loss = criterion(scaled, b)\n{STEP}",
    "a loss for the next cell": "out = model(x)\nloss = criterion(out, x)",
    "an output for the next cell": "out = model(x)",
    "a sum that goes backward": "total = 0\nfor b in x.split(256):\n"
    "    total = total + criterion(model(b), b)\ntotal.backward()",
    "a list that goes backward": "losses = []\nfor b in x.split(256):\n"
    "    losses.append(criterion(model(b), b))\nsum(losses).backward()",
    "two losses of one graph": "for b in x.split(1024):\n    out = model(b)\n"
    "    one, two = criterion(out, b), out.pow(2).mean()\n"
    "    one.backward(retain_graph=True)\n    two.backward()\n    optimizer.step()",
    "a state that is carried on": "h = x\nfor i in range(3):\n    h = model(h)\n"
    "    h.mean().backward(retain_graph=True)",
    "averages that no graph holds": "wide = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), "
    "nn.Linear(1024, 1024)).cuda()\noptimizer = torch.optim.SGD(wide.parameters(), lr=0.1)\n"
    "copies = {n: p for n, p in wide.named_parameters()}\nfor i in range(3):\n"
    f"    loss = wide(torch.randn(16, 1024, device='cuda')).mean()\n{STEP}"
    "    for n, p in wide.named_parameters():\n        copies[n] = 0.9 * copies[n] + 0.1 * p",
    "a decorated function": "@torch.no_grad()\ndef run(x):\n    return model(x)\n\ny = run(x)",
}

LOUD = {
    "validation under names of training": (
        f"for b in x.split(1024):\n    loss = criterion(model(b), b)\n{STEP}"
        "for b in x.split(2048):\n    loss = criterion(model(b), b)\n    print(loss.item())",
        "missing-no-grad",
        7,
    ),
    "retained within a function": (
        "def step(b):\n    loss = criterion(model(b), b)\n    loss.backward(retain_graph=True)\n"
        "    optimizer.step()\n    return loss\n\nfor i in range(3):\n    last = step(x)",
        "retained-graph",
        3,
    ),
    "a list read as numbers": (
        "losses = []\nfor b in x.split(512):\n    losses.append(criterion(model(b), b))\n"
        "print(sum(losses) / len(losses))",
        "kept-graph",
        3,
    ),
}


@pytest.fixture
def advice_of(notebook):
    def advise(cell):
        with notebook() as one:
            one.set_up(Example(before="", after="", setup=SETUP))
            found = one.measure(cell).advice
        return [advice for advice in found if advice.rule in RULES]

    return advise


@pytest.mark.parametrize("cell", QUIET.values(), ids=QUIET)
def test_what_a_backward_pass_may_use_is_no_mistake(cell, advice_of):
    assert advice_of(cell) == []


@pytest.mark.parametrize(("cell", "rule", "line"), LOUD.values(), ids=LOUD)
def test_the_line_is_named(cell, rule, line, advice_of):
    found = [advice for advice in advice_of(cell) if advice.rule == rule]
    assert [advice.line for advice in found] == [line + 1]  # the mark is the first line
    assert "MiB" in found[0].problem


def code_of(text):
    return Code(Cell(text, "<cell>"))


def lines_behind(text, name):
    code = code_of(text)
    read = [*code.reads(name)][-1]
    return sorted(s.lineno for s in GradientFlow(code, Names()).origin([read]).statements)


def test_values_are_followed_back_to_where_they_were_made():
    assert lines_behind("a = f()\nb = g(a)\nc = h()\nuse(b)", "b") == [1, 2]
    assert lines_behind("a = f()\na = g()\nuse(a)", "a") == [2]
    assert lines_behind("a = f().detach()\nb = a + f()\nuse(b)", "b") == [1, 2]
    assert lines_behind("kept = []\nfor i in n:\n    v = f(i)\n    kept.append(v)\nuse(kept)",
                        "kept") == [1, 2, 3, 4]  # fmt: skip
    assert lines_behind("def f(v):\n    w = g(v)\n    return w\n\na = h()\nb = f(a)\nuse(b)",
                        "b") == [2, 3, 5, 6]  # fmt: skip


def test_a_value_of_an_earlier_pass_is_known_as_such():
    code = code_of("h = start()\nfor i in n:\n    h = step(h)\n    use(h)")
    definitions = Definitions(code)
    inner = code.tree.body[1].body[0]
    found = definitions.reaching("h", inner)
    assert [s.lineno for s in found.statements] == [3, 1]
    assert found.carried == {inner}
