from __future__ import annotations

import sys
import types

import pytest
import torch

CODE = """
import dataclasses, enum, functools, torch
from torch import nn

def counter():
    count = [0]
    def step():
        nonlocal count
        count = [count[0] + 1]
        return count[0]
    return step
step = counter()

def gather(x, into=[], *, keep={}):
    into.append(x)
    keep[x] = x
    return into
gather.calls = [0]

class Net(nn.Module):
    made = []
    scale = torch.ones(2)
    def __init__(self):
        super().__init__()
        Net.made.append(1)
        self.layer = nn.Linear(2, 2)
    def forward(self, x):
        return self.layer(x) * Net.scale
    @functools.lru_cache
    def mask(self): return torch.ones(1)
net = Net()

class Mode(enum.Enum):
    FAST = 1

@dataclasses.dataclass
class Settings:
    sizes: list = dataclasses.field(default_factory=list)
settings = Settings([1])

def follow(module, inputs, output):
    seen.append(output.shape)
seen = []
net.layer.register_forward_hook(follow)
other = nn.Linear(2, 2)
net.register_forward_hook(lambda module, inputs, output: other(output))
"""


@pytest.fixture
def space(run):
    return run(CODE, {})


def test_closures_are_exchanged(lend, space):
    space["step"]()
    with lend(space):
        assert space["step"]() == 2
        assert space["step"]() == 3
    assert space["step"]() == 2


def test_defaults_and_attributes_of_functions(lend, run, space):
    gather = space["gather"]
    with lend(space):
        run("gather(1); gather(2); gather.calls[0] = 5; gather.new = 1", space)
        run("gather.__defaults__ = ()", space)
    assert gather.__defaults__ == ([],)
    assert gather.__kwdefaults__ == {"keep": {}}
    assert vars(gather) == {"calls": [0]}


def test_class_attributes(lend, run, space):
    net, scale, forward = space["Net"], space["Net"].scale, space["Net"].forward
    with lend(space) as found:
        run("Net(); Net.scale.zero_(); Net.added = 1; Net.forward = lambda self, x: x", space)
        assert net.made == [1, 1]
        assert found.notes == ()
    assert net.made == [1]
    assert net.scale is scale
    assert scale.tolist() == [1, 1]
    assert not hasattr(net, "added")
    assert net.forward is forward
    assert space["Mode"].FAST is space["Mode"]["FAST"]


def test_methods_that_remember_do_not_remember_copies(lend, run, space):
    with lend(space):
        run("net.mask()", space)
    assert space["Net"].mask.cache_info().currsize == 0


def test_hooks_and_what_they_refer_to(lend, run, space):
    other = space["other"].weight
    with lend(space):
        assert space["other"].weight is not other
        run("net(torch.ones(1, 2)).sum().backward()", space)
        assert space["other"].weight.grad is not None
        assert space["seen"] == [torch.Size([1, 2])]
    assert space["seen"] == []
    assert other.grad is None


def test_instances_keep_their_class(lend, run, space):
    with lend(space):
        assert isinstance(space["settings"], space["Settings"])
        run("settings.sizes.append(2)", space)
    assert space["settings"].sizes == [1]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's beside the notebook."""
    path = tmp_path / "mymodels.py"
    path.write_text(
        "import torch\nnet = torch.nn.Linear(2, 2)\nplain = [1]\n"
        "def score(x):\n    global last\n    last = net(x).sum()\n    return last\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    module = importlib.import_module("mymodels")
    yield module
    del sys.modules["mymodels"]


@pytest.mark.parametrize("how", ["mymodels", "score"])
def test_globals_of_the_users_modules_where_they_hold_tensors(lend, run, module, how):
    space = {"mymodels": module} if how == "mymodels" else {"score": module.score}
    before, weight = list(vars(module).items()), module.net.weight
    with lend(space):
        score = module.score if how == "mymodels" else space["score"]
        score(torch.ones(1, 2)).backward()
        assert module.net.weight is not weight
    assert [(k, id(v)) for k, v in before] == [(k, id(v)) for k, v in vars(module).items()]
    assert weight.grad is None


def test_modules_without_tensors_and_libraries_are_left_alone(lend, tmp_path, monkeypatch):
    module = types.ModuleType("plainmodule")
    module.__file__ = str(tmp_path / "plainmodule.py")
    module.table = table = {"a": [1]}
    monkeypatch.setitem(sys.modules, "plainmodule", module)
    with lend({"module": module, "torch": torch}):
        assert module.table is table
