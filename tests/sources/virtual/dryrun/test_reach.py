from __future__ import annotations

import ast

import pytest

from gpumem_magic.sources.virtual.dryrun.reach import names_reached

SPACE = """
import functools, torch
size = 4
unused = [1]
model = torch.nn.Linear(size, size)
data = torch.ones(2, size)
def loss_of(batch):
    return (lambda b: model(b).sum() * scale)(batch)
scale = 2
def deeper():
    def inner(): return data
    return inner
class Net(torch.nn.Module):
    def forward(self, x): return x * scale
    @property
    def width(self): return size
    @staticmethod
    def make(): return data
net = Net()
part = functools.partial(loss_of, 1)
def hooked(module, args): return unused
with_hook = torch.nn.Linear(1, 1)
with_hook.register_forward_pre_hook(hooked)
closure = deeper()
def sly(): return globals()
def stepwise():
    yield unused
steps = stepwise()
"""


@pytest.fixture
def space(run):
    return run(SPACE, {})


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("x = 1", set()),
        ("size", {"size"}),
        ("size = 5", {"size"}),
        ("del data", {"data"}),
        ("for size in range(3): pass", {"size"}),
        ("loss_of(data)", {"loss_of", "model", "data", "scale"}),
        ("part()", {"part", "model", "scale"}),
        ("deeper()()", {"deeper", "data"}),
        ("closure()", {"closure", "data"}),
        ("net(1)", {"net", "scale", "size", "data", "Net"}),
        ("Net()", {"Net", "scale", "size", "data"}),
        ("with_hook(1)", {"with_hook", "unused"}),
        ("next(steps)", {"steps", "unused"}),
        ("def f():\n    global size\n    size = 1", {"size"}),
        ("def f(): return [data for _ in ()]", {"data"}),
        ("import torch", {"torch"}),
        ("try: pass\nexcept OSError as size: pass", {"size"}),
    ],
)
def test_names_that_a_cell_reaches(space, cell, names):
    found = names_reached(ast.parse(cell), space)
    assert found is not None
    assert found - {"Net"} == names - {"Net"}


@pytest.mark.parametrize("cell", ["globals()['a']", "eval('x')", "get_ipython().run()", "sly()"])
def test_code_that_reaches_names_by_their_text_reaches_all(space, cell):
    assert names_reached(ast.parse(cell), space) is None


def test_a_users_function_of_that_name_is_an_ordinary_name(run):
    space = run("def vars(): return 1", {})
    assert names_reached(ast.parse("vars()"), space) == {"vars"}


def test_no_code_of_the_users_runs(run):
    space = run(
        "class Loud:\n"
        "    def __getattr__(self, name): raise SystemError\n"
        "    def __eq__(self, other): raise SystemError\n"
        "    __hash__ = None\n"
        "loud = Loud()",
        {},
    )
    assert names_reached(ast.parse("loud"), space) == {"loud"}
