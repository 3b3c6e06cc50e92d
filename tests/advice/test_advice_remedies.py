"""What a report of a failure says that `del` gives back is what it gives back."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.values.findings import Way  # noqa: E402 - needs torch for what it is tested with

MIB = 1 << 20
SETUP = """\
import contextlib, copy, functools, sys, threading, types
from collections import deque, namedtuple
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def mib(n):
    return torch.zeros(int(n * 2**20), dtype=torch.uint8, device="cuda")

def layers():
    return nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048)).cuda()

class Box:
    pass
"""
TOO_MUCH = """\
free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
size = free / 2**20 + 8
"""
X = "x = mib(40)\n"
# What comes before the cell; what the cell reads; the names to delete, "" where none gives it back.
HELD = {
    "one name": (X, "", "x"),
    "an alias": (f"{X}y = x", "", "x, y"),
    "an alias that is read": (f"{X}y = x", "y", ""),
    "a view": (f"{X}v = x[:9]", "", "x, v"),
    "a view alone": ("v = mib(40)[:9]", "", "v"),
    "a view that is read": (f"{X}v = x[:9]", "v", ""),
    "a detached view": (
        "x = torch.zeros(10 << 20, device='cuda', requires_grad=True)\nd = x.detach()",
        "",
        "x, d",
    ),
    "chunks": (f"{X}a, b = x.chunk(2)", "a", ""),
    "a list": (f"{X}l = [x]", "", "x, l"),
    "views in a list": (f"{X}l = [*x.chunk(4)]", "", "x, l"),
    "a list that is read": (f"{X}l = [x]", "l", ""),
    "two containers": ("a = [mib(40)]\nb = {'k': a[0]}", "", "a, b"),
    "a variable of a loop": ("xs = [mib(10) for _ in range(4)]\nfor t in xs: pass", "t", "xs"),
    "a closure": (f"{X}def f(x=x): return x", "f", ""),
    "a function of it": (f"{X}p = functools.partial(torch.sum, x)", "", "x, p"),
    "a cache": ("load = functools.lru_cache(mib)\nx = load(40)", "load", ""),
    "a generator": ("g = (t for t in [mib(20), mib(20)])\nx = next(g)", "g", ""),
    "an iterator": ("it = iter([mib(40)])\nx = next(it)", "", "x, it"),
    "an exception": (
        f"{X}def bad(t): 1 / 0\ntry: bad(x)\nexcept Exception as e: kept = e",
        "",
        "x, kept",
    ),
    "the last error": (f"{X}def bad(t): 1 / 0\nbad(x)", "", ""),
    "an output": (f"{X}x", "", ""),
    "an object": ("a = Box()\na.t = mib(40)\nb = a", "", "a, b"),
    "a cycle": ("a = Box()\na.t = mib(40)\na.me = a", "", "a"),
    "a queue": ("q = deque([mib(40)])\nx = q[0]", "", "x, q"),
    "a named tuple": ("n = namedtuple('N', 't')(mib(40))\nx = n.t", "n", ""),
    "a storage": (f"{X}s = x.untyped_storage()", "", ""),
    "a loader that is read": (f"{X}loader = DataLoader(TensorDataset(x))", "loader", ""),
    "an optimizer": (
        "model = layers()\nopt = torch.optim.SGD(model.parameters())",
        "",
        "model, opt",
    ),
    "an optimizer that is read": (
        "model = layers()\nopt = torch.optim.SGD(model.parameters())",
        "opt",
        "",
    ),
    "a part of a model": ("model = layers()\nfirst = model[0]", "", "model, first"),
    "a part that is read": ("model = layers()\nfirst = model[0]", "first", "model"),
    "weights": ("model = layers()\nbest = model.state_dict()", "", "model, best"),
    "copied weights": ("model = layers()\nbest = copy.deepcopy(model)", "best", "model"),
    "tied weights": ("a, b = layers(), layers()\nb[0].weight = a[0].weight", "b", "a"),
    "a graph": ("w = torch.zeros(5 << 20, device='cuda', requires_grad=True)\n"
                "x = torch.zeros(5 << 20, device='cuda')\nf = (w * x).sum().grad_fn", "f", ""),
    "a module": (f"{X}sys.modules['held'] = types.SimpleNamespace(t=x)", "", ""),
    "a thread": (
        f"{X}event = threading.Event()\n"
        "thread = threading.Thread(target=lambda t: event.wait(9), args=(x,), daemon=True)\n"
        "thread.start()",
        "",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "read", "names"), HELD.values(), ids=HELD)
def test_a_del_gives_back_what_was_said_of_it(before, read, names, notebook):
    cell = f"big = mib(size)\n{read}\n"
    with notebook("120MiB") as one:
        try:
            one.run(SETUP)
            one.run(before)
            one.run(TOO_MUCH)
            oom = one.measure(cell).oom
            told = [remedy for remedy in oom.remedies if remedy.way is Way.UNUSED]
            assert [remedy.name for remedy in told] == ([names] if names else [])
            for remedy in told:
                one.run(SETUP)
                one.run(before)
                gc.collect()
                held = torch.cuda.memory_allocated()
                result, said = one.run(f"del {remedy.name}")
                assert result.success, said
                gc.collect()
                freed = held - torch.cuda.memory_allocated()
                assert abs(freed - remedy.size) <= 0.02 * remedy.size
        finally:
            one.run("sys.modules.pop('held', None)\nif 'event' in globals(): event.set()")
