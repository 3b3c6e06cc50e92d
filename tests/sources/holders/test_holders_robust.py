"""Nothing of the user's runs while it is looked at, and nothing is kept."""

from __future__ import annotations

import gc
import weakref

EVIL = """
calls = []
def fails(name):
    def method(self, *args, **kwargs):
        calls.append(name)
        raise RuntimeError(name)
    return method

class Evil:
    def __init__(self, tensor):
        object.__setattr__(self, "held", tensor)
    @property
    def __class__(self):
        calls.append("__class__")
        raise RuntimeError

class Meta(type):
    pass
class OfMeta(metaclass=Meta):
    pass
class EvilDict(dict):
    pass
class EvilList(list):
    pass
def big(n):
    return torch.ones(n << 10, device="cuda")
evil, table, row, odd = Evil(big(4)), EvilDict(a=big(8)), EvilList([big(12)]), OfMeta()
odd.held = big(16)
ATTRIBUTES = ["repr", "eq", "bool", "len", "hash", "getattr", "getattribute", "iter", "contains"]
for kind in (Evil, EvilDict, EvilList, Meta):
    for name in ATTRIBUTES:
        setattr(kind, f"__{name}__", fails(name))
for name in ("items", "keys", "values", "get"):
    setattr(EvilDict, name, fails(name))
del kind
"""


def test_no_method_of_the_users_runs(notebook):
    notebook.run(EVIL)
    calls = notebook.shell.user_ns["calls"]
    calls.clear()

    found = {h.name: h.size for h in notebook.inventory().holdings}

    assert calls == []
    assert found == {
        "evil.held": 16 << 10,
        "table['a']": 32 << 10,
        "row[0]": 48 << 10,
        "odd.held": 64 << 10,
    }


def test_nothing_is_kept_alive(notebook):
    notebook.run(
        "x = torch.ones(9, device='cuda', requires_grad=True)\ny = [(x * x).sum()]\n"
        "def numbers():\n    z = x * 2\n    yield z\ng = numbers(); next(g);"
    )
    names = notebook.shell.user_ns
    tensors = [weakref.ref(t) for t in (names["x"], names["y"][0])]

    notebook.inventory()
    notebook.parts("y")

    assert not gc.isenabled()
    notebook.run("del g, y, x")
    assert [t() for t in tensors] == [None, None]
    assert notebook.source.level().allocated == 0
