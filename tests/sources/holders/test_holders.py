"""Each kind of holder, alone, in a fresh shell: it is named, to the byte, and can let go."""

from __future__ import annotations

import sys

import pytest

from gpumem_magic.values.inventory import HolderKind as Kind
from gpumem_magic.values.recording import Category

MIB = 1 << 20
BIG = "watch(torch.ones(3 << 18, device='cuda'))"  # 3 MiB, as no other tensor of these tests
SIZE = 3 * MIB
LAST = "last_exc" if sys.version_info >= (3, 12) else "last_value"  # of `sys`

# kind, cells, name, how to let go: steps, or a cell
ALONE = {
    "variable": (Kind.VARIABLE, [f"x = {BIG}"], "x", "del x"),
    "list": (Kind.VARIABLE, [f"xs = [1, {{'a': ({BIG},)}}]"], "xs[1]['a'][0]", "xs.clear()"),
    "slots": (
        Kind.VARIABLE,
        ["class S:\n    __slots__ = 'held',\ns = S()", f"s.held = {BIG}"],
        "s.held",
        "del s.held",
    ),
    "dataclass": (
        Kind.VARIABLE,
        [f"import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: object\nd = D({BIG})"],
        "d.a",
        "del d",
    ),
    "storage": (Kind.VARIABLE, [f"s = {BIG}.untyped_storage()"], "s", "del s"),
    "key": (Kind.VARIABLE, [f"d = {{{BIG}: 1}}"], "list(d)[0]", "d.clear()"),
    "iterator": (Kind.VARIABLE, [f"it = iter([{BIG}])"], "it[0]", "del it"),
    "bound method": (Kind.VARIABLE, [f"double = {BIG}.add"], "double.__self__", "del double"),
    "class": (Kind.VARIABLE, [f"class Table:\n    rows = {BIG}"], "Table.rows", "del Table.rows"),
    "output": (Kind.OUTPUT_HISTORY, [f"{BIG}"], "Out[2]", ("outputs",)),
    "error": (
        Kind.EXCEPTION,
        [f"def fails():\n    h = {BIG}\n    1 / 0", "fails()"],
        f"sys.{LAST}: fails().h",
        ("errors",),
    ),
    "error behind an error": (
        Kind.EXCEPTION,
        [
            f"def fails():\n    h = {BIG}\n    1 / 0",
            "try:\n    fails()\nexcept ZeroDivisionError:\n    raise RuntimeError('again')",
        ],
        f"sys.{LAST}.__context__: fails().h",
        ("errors",),
    ),
    "kept error": (
        Kind.EXCEPTION,
        [
            f"def fails():\n    h = {BIG}\n    1 / 0",
            "try:\n    fails()\nexcept ZeroDivisionError as error:\n    kept = error",
        ],
        "kept: fails().h",
        "del kept",
    ),
    "graph": (
        Kind.GRAPH,
        [f"w = torch.ones(1, device='cuda', requires_grad=True)\ny = (w * {BIG}).mean()"],
        "y.grad_fn: MulBackward0.other",
        "del y",
    ),
    "custom function": (
        Kind.GRAPH,
        [
            "class Twice(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x):\n"
            f"        ctx.kept = {BIG}\n"
            "        return x * 2\n"
            "    @staticmethod\n"
            "    def backward(ctx, g):\n"
            "        return g * 2",
            "y = Twice.apply(torch.ones(1, device='cuda', requires_grad=True))",
        ],
        "y.grad_fn: TwiceBackward.kept",
        "del y",
    ),
    "optimizer": (
        Kind.OPTIMIZER,
        [f"o = torch.optim.SGD([{BIG}.requires_grad_()], lr=1)"],
        "o.param_groups[0]['params'][0]",
        "del o",
    ),
    "module hook": (
        Kind.HOOK,
        [
            "m = nn.Linear(1, 1)",
            f"handle = m.register_forward_hook(lambda *a, t={BIG}: None)",
        ],
        "m._forward_hooks[{key}]: defaults.t",
        "handle.remove()",
    ),
    "tensor hook": (
        Kind.HOOK,
        [
            "p = torch.ones(1, device='cuda', requires_grad=True)",
            f"handle = p.register_hook(functools.partial(torch.mul, {BIG}))",
        ],
        "p: hooks[{key}].args[0]",
        "handle.remove()",
    ),
    "closure": (
        Kind.CLOSURE,
        [f"def make():\n    big = {BIG}\n    return lambda: big", "f = make()"],
        "f: closure.big",
        "del f",
    ),
    "partial": (
        Kind.CLOSURE,
        [f"f = functools.partial(torch.add, {BIG})"],
        "f.args[0]",
        "del f",
    ),
    "lru_cache": (
        Kind.CACHE,
        [f"@functools.lru_cache\ndef load(n):\n    return {BIG}", "load(1);"],
        "load: cache",
        "load.cache_clear()",
    ),
    "generator": (
        Kind.GENERATOR,
        [f"def batches():\n    batch = {BIG}\n    yield 1", "g = batches(); next(g);"],
        "g: batches().batch",
        "del g",
    ),
    "what a generator loops over": (
        Kind.GENERATOR,
        [f"def batches():\n    for b in [1, {BIG}]:\n        yield 1", "g = batches(); next(g);"],
        "g: batches()[1]",
        "del g",
    ),
    "cycle": (
        Kind.CYCLE,
        [f"class Node: pass\nn = Node(); n.me = n; n.x = {BIG}; del n"],
        "<Node>.x",
        ("cycles",),
    ),
    "another module": (
        Kind.MODULE_STATE,
        [f"import tabnanny\ntabnanny.kept_by_a_test = {BIG}"],
        "tabnanny.kept_by_a_test",
        "del tabnanny.kept_by_a_test",
    ),
}


@pytest.mark.parametrize("case", ALONE)
def test_each_holder_is_named_to_the_byte_and_lets_go(notebook, case):
    # GIVEN a storage that one thing keeps alive
    kind, cells, name, how = ALONE[case]
    notebook.run(*cells)
    assert notebook.alive

    # WHEN the inventory is taken
    found = notebook.holders(SIZE)

    # THEN it names that thing, and only letting go of that thing frees it
    assert [(h.kind, h.count) for h in found] == [(kind, 1)]
    assert found[0].name == name.format(key=next(iter(_hooks(notebook)), None))
    for steps in [("cycles",), ("errors",), ("outputs",)]:
        if how not in (steps, ("cycles",)):  # every step collects what it has made garbage
            notebook.free(*steps)
            assert notebook.alive
    if isinstance(how, tuple):
        freed = notebook.free(*how)
        assert [f.allocated for f in freed] == [SIZE]
    else:
        notebook.run(how)
    assert not notebook.alive
    assert notebook.holders(SIZE) == []


def _hooks(notebook):
    names = notebook.shell.user_ns
    if "m" in names:
        return names["m"]._forward_hooks
    return names["p"]._backward_hooks if "p" in names else {}


def test_a_gradient_that_python_never_touched_is_found(notebook):
    notebook.run(
        "w = torch.ones(3 << 18, device='cuda', requires_grad=True)",
        "w.sum().backward()",
    )

    found = notebook.holders(SIZE)

    assert {(h.name, h.category) for h in found} == {
        ("w", Category.PARAMETER),
        ("w.grad", Category.GRADIENT),
    }


def test_views_slices_and_tied_tensors_count_once(notebook):
    notebook.run(
        "x = torch.ones(3 << 18, device='cuda')",
        "row, flat, same = x[:5], x.view(-1, 8), x",
        "a = nn.Linear(512, 512, bias=False).cuda(); b = nn.Linear(512, 512, bias=False)",
        "b.weight = a.weight",
    )

    found = {h.name: h for h in notebook.inventory().holdings}

    assert found["x"].size == SIZE
    assert set(found["x"].also) == {"row", "flat", "same"}
    assert found["a.weight"].size == MIB
    assert found["a.weight"].also == ("b",)
    assert len(found) == 2


def test_output_history_has_many_places_and_all_let_go(notebook):
    notebook.run(BIG)

    (found,) = notebook.holders(SIZE)
    assert found.unneeded
    assert {"_2", "_", "user_ns_hidden['_2']", "displayhook._"} & set(found.also)
    notebook.free("outputs")

    assert not notebook.alive
    assert notebook.shell.user_ns["Out"] == {}
    assert "_2" not in notebook.shell.user_ns


def test_what_a_name_also_has_stays_when_the_rest_lets_go(notebook):
    notebook.run(f"x = {BIG}", "x", "def fails():\n    y = x\n    1 / 0", "fails()")

    (found,) = notebook.holders(SIZE)
    freed = notebook.free("cycles", "errors", "outputs", "cache")

    assert (found.kind, found.name, found.unneeded) == (Kind.VARIABLE, "x", None)
    assert "Out[3]" in found.also
    assert notebook.alive
    assert [f.allocated for f in freed] == [0, 0, 0, 0]


def test_what_is_let_go_returns_to_the_device(notebook):
    notebook.run(BIG)

    freed = notebook.free("cycles", "errors", "outputs", "cache")

    assert [f.allocated for f in freed] == [0, 0, SIZE, 0]
    assert [f.reserved for f in freed] == [0, 0, 0, 20 * MIB]
    assert notebook.source.level().reserved == 0
    assert freed[1].cost
    assert freed[2].cost


def test_after_out_of_memory_the_memory_comes_back(notebook):
    notebook.run(
        "def step(n):\n    h = []\n    for _ in range(n):\n"
        "        h.append(torch.empty(1 << 28, device='cuda'))",
        "step(100)",
    )
    assert notebook.source.level().allocated > 10 << 30
    (largest, *_) = notebook.inventory().holdings
    assert largest.kind is Kind.EXCEPTION

    notebook.free("cycles", "errors", "cache")

    assert notebook.source.level().allocated == 0
    assert notebook.source.level().reserved == 0
    notebook.run("step(2)")
    assert "OutOfMemoryError" not in notebook.printed
    assert not hasattr(sys, "last_value")
