"""Each kind of holder in a fresh shell, through the magic alone: `%gpucheck` names it to the byte,
and `%gpucheck --free` with the right option, or the user's own statement, lets its storage die."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
from IPython.utils.capture import capture_output

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer would import it, which changes torch

from gpumem_magic.values.inventory import HolderKind as Kind  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_old")

MIB = 1 << 20
SIZE = 3 * MIB
BIG = "keep(torch.ones(3 << 18, device='cuda'))"  # 3 MiB, as no other tensor of these tests
FAILS = f"def fails():\n    held = {BIG}\n    raise ValueError('one')"
CHAINED = "try:\n    fails()\nexcept ValueError as e:\n    raise KeyError('two'){}"
FREE, OUTPUTS, ALL = "%gpucheck --free", "%gpucheck --free --outputs", "%gpucheck --free --all"
N = "{n}"  # the number of the last cell

# kind, cells, name as it begins, what lets go of it
HOLDERS = {
    "variable": (Kind.VARIABLE, [f"x = {BIG}"], "x", "del x"),
    "list in a dict": (Kind.VARIABLE, [f"d = {{'a': [{BIG}]}}"], "d['a'][0]", "d.clear()"),
    "view": (Kind.VARIABLE, [f"row = {BIG}[5:9]"], "row", "del row"),
    "displayed": (Kind.OUTPUT_HISTORY, [BIG], f"Out[{N}]", OUTPUTS),
    "displayed, with --all": (Kind.OUTPUT_HISTORY, [BIG], f"Out[{N}]", ALL),
    "displayed longer ago": (Kind.OUTPUT_HISTORY, [BIG, "1", "2", "3", "4"], "Out[", OUTPUTS),
    "_ alone": (
        Kind.OUTPUT_HISTORY,
        [BIG, "del Out[max(Out)]\nfor n in [*get_ipython().user_ns_hidden]:\n"
         "    if n[:1] == '_' and n[1:].isdigit(): get_ipython().user_ns_hidden.pop(n), "
         "globals().pop(n, None)"],
        "_",
        OUTPUTS,
    ),
    "hidden names alone": (
        Kind.OUTPUT_HISTORY,
        [BIG, "_n = max(Out)\ndel Out[_n], globals()[f'_{_n}']", "1", "2", "3", "4"],
        "user_ns_hidden['_",
        OUTPUTS,
    ),
    "error": (Kind.EXCEPTION, [FAILS, "fails()"], "sys.last_", FREE),
    "error and later cells": (Kind.EXCEPTION, [FAILS, "fails()", "1;", "x = 2"], "sys.last_", FREE),
    "traceback of the shell alone": (
        Kind.EXCEPTION,
        [FAILS, "fails()", "import sys\nfor _n in ('type', 'value', 'traceback', 'exc'):\n"
         "    vars(sys).pop(f'last_{_n}', None)\n1;"],
        "InteractiveTB.tb",
        FREE,
    ),
    "context": (
        Kind.EXCEPTION, [FAILS, CHAINED.format("")], "sys.last_value.__context__: fails().held",
        FREE,
    ),
    "cause": (
        Kind.EXCEPTION, [FAILS, CHAINED.format(" from e")],
        "sys.last_value.__cause__: fails().held", FREE,
    ),
    "error in a variable": (
        Kind.EXCEPTION, [FAILS, "try:\n    fails()\nexcept ValueError as e:\n    kept = e"],
        "kept: fails().held", "del kept",
    ),
    "graph": (
        Kind.GRAPH,
        [f"w = torch.ones(1, device='cuda', requires_grad=True)\nloss = (w * {BIG}).mean()"],
        "loss.grad_fn: MulBackward0", "del loss",
    ),
    "optimizer": (
        Kind.OPTIMIZER, [f"opt = torch.optim.SGD([{BIG}.requires_grad_()], lr=1)"],
        "opt.param_groups[0]['params'][0]", "del opt",
    ),
    "optimizer's state": (
        Kind.OPTIMIZER,
        ["p = torch.ones(1, device='cuda', requires_grad=True)\nopt = torch.optim.SGD([p])\n"
         f"opt.state[p]['momentum'] = {BIG}"],
        "opt.state[p]['momentum']", "del opt",
    ),
    "hook of a module": (
        Kind.HOOK,
        [f"m = nn.Linear(1, 1)\nh = m.register_forward_hook(lambda *a, t={BIG}: None)"],
        "m._forward_hooks[", "h.remove()",
    ),
    "hook of a tensor": (
        Kind.HOOK,
        ["p = torch.ones(1, device='cuda', requires_grad=True)\n"
         f"h = p.register_hook(functools.partial(torch.mul, {BIG}))"],
        "p: hooks[", "h.remove()",
    ),
    "closure": (
        Kind.CLOSURE, [f"def make():\n    t = {BIG}\n    return lambda: t\nf = make()"],
        "f: closure.t", "del f",
    ),
    "cache": (
        Kind.CACHE, [f"@functools.lru_cache\ndef load(n):\n    return {BIG}\nload(1);"],
        "load: cache", "load.cache_clear()",
    ),
    "generator": (
        Kind.GENERATOR,
        [f"def batches():\n    batch = {BIG}\n    yield 1\ng = batches(); next(g);"],
        "g: batches().batch", "del g",
    ),
    "cycle": (
        Kind.CYCLE, [f"class Node: pass\nn = Node(); n.me = n; n.x = {BIG}; del n"], "<Node>.x",
        FREE,
    ),
    "cycle through a model": (
        Kind.CYCLE,
        [f"net = nn.Module(); net.me = [net]; net.w = nn.Parameter({BIG}); del net"],
        "<Module>.w", FREE,
    ),
    "another module": (
        Kind.MODULE_STATE,
        ["import sys, types\nsys.modules['other'] = m = types.ModuleType('other')\n"
         f"m.table = {BIG}; del m"],
        "other.table", "del sys.modules['other'].table",
    ),
    "C++ alone": (
        Kind.UNKNOWN, [f"f = torch.futures.Future()\nf.set_result({BIG});"], "nothing that Python",
        "del f",
    ),
}  # fmt: skip


class Notebook:
    """Cells in a fresh shell on a virtual card; `alive` tells of the storage given to `keep`."""

    def __init__(self, shell):
        self.shell = shell
        self.storages = []
        shell.user_ns["keep"] = self.keep
        self.run("%load_ext gpumem_magic\n%gpumem --device T4")
        self.run("import functools, torch\nfrom torch import nn")

    def keep(self, tensor):
        self.storages.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    def run(self, *cells):
        for cell in cells:
            with capture_output() as shown:
                self.shell.run_cell(cell, store_history=True)
        return shown.stdout + "".join(o.data["text/plain"] for o in shown.outputs)

    def look(self):
        """The text of %gpucheck, its inventory, and the holdings of `SIZE` bytes in it."""
        text = self.run("%gpucheck -o held")
        held = self.shell.user_ns.pop("held")
        assert sum(h.size for h in held.holdings) == held.level.allocated
        return text, [h for h in held.holdings if h.size == SIZE]

    @property
    def alive(self):
        return self.storages[-1]() is not None


@pytest.fixture
def notebook(shell):
    """Objects from before the test are no part of it; without them collections are quick."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield Notebook(shell)
    finally:
        shell.run_line_magic("gpucheck", "--free --all -o answer")
        shell.user_ns.clear()
        sys.modules.pop("other", None)
        gc.enable()


@pytest.mark.parametrize("case", HOLDERS)
def test_each_holder_is_named_to_the_byte_and_dies_with_the_right_option(notebook, case):
    # GIVEN a storage that one thing keeps alive
    kind, cells, name, cure = HOLDERS[case]
    notebook.run(*cells)
    number = max(notebook.shell.user_ns["Out"], default=0)
    assert notebook.alive

    # WHEN %gpucheck is asked, THEN it names this thing, on the screen too
    text, found = notebook.look()
    assert [(h.kind, h.count) for h in found] == [(kind, 1)]
    held = found[0].name.replace("sys.last_exc", "sys.last_value")  # both, from Python 3.12 on
    assert held.startswith(name.format(n=number))
    assert f"{found[0].name} 3.0 MiB" in " ".join(text.split())
    if cure.startswith("%"):
        assert found[0].unneeded
        assert cure in text or cure == ALL

    # AND the options that are not for it do not free it
    others = {FREE: (), OUTPUTS: (FREE,), ALL: (FREE,)}
    for command in others.get(cure, (FREE, OUTPUTS, ALL)):
        notebook.run(command)
    assert notebook.alive

    # AND the right option, or statement, does
    notebook.run(cure)
    assert not notebook.alive
    assert notebook.look()[1] == []


def test_gradients_that_python_never_touched_are_found_and_go_with_all(notebook):
    notebook.run(f"w = {BIG}.requires_grad_()\nw.sum().backward()")
    _, found = notebook.look()
    assert {(h.name, h.category.value) for h in found} == {
        ("w", "parameter"),
        ("w.grad", "gradient"),
    }
    notebook.run(ALL)
    assert [h.name for h in notebook.look()[1]] == ["w"]
    assert notebook.alive


def test_what_a_name_holds_too_survives_every_option(notebook):
    notebook.run(f"x = {BIG}", "x", "def fails(t):\n    raise ValueError", "fails(x)")
    notebook.run(FREE, OUTPUTS, ALL)
    assert notebook.alive
    assert [h.name for h in notebook.look()[1]] == ["x"]
    notebook.run("del x")
    assert not notebook.alive
