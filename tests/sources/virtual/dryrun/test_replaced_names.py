"""What a cell replaces in libraries is as it was afterwards."""

from __future__ import annotations

import ast
import atexit
import weakref

import pytest
import torch

from gpumem_magic.events import Cell
from gpumem_magic.sources.virtual.catalog import lookup
from gpumem_magic.sources.virtual.dryrun import dry_run
from gpumem_magic.sources.virtual.dryrun.replaced_names import replaced_names_put_back


def dry(code, namespace):
    return dry_run(Cell(code, "<cell>"), code, namespace, lookup("T4"))[0]


def test_functions_methods_and_new_names_are_put_back():
    import torch.nn.functional as functional

    before = functional.relu, torch.nn.Linear.forward
    code = (
        "import torch\nimport torch.nn.functional as F\nfrom torch.nn import Linear\n"
        "F.relu = lambda x: x\nLinear.forward = lambda self, x: x\n"
        "torch.my_own = 1\nsetattr(torch.Tensor, 'mine', 2)\n"
        "assert Linear(3, 4).cuda()(5) == 5 and torch.ones(1).mine == 2\n"
    )
    found = dry(code, {})
    assert found.error is None
    assert (functional.relu, torch.nn.Linear.forward) == before
    assert not hasattr(torch, "my_own")
    assert not hasattr(torch.Tensor, "mine")


def test_what_a_cell_deletes_comes_back_also_when_it_raises():
    relu = torch.relu
    with pytest.raises(KeyError), replaced_names_put_back(ast.parse("del torch.relu"), vars(torch)):
        raise KeyError
    found = dry("del torch.relu\nraise ValueError('no')\n", {"torch": torch})
    assert found.error == "ValueError: no"
    assert torch.relu is relu


def test_objects_are_no_concern_of_it():
    class Thing:
        @property
        def value(self):
            raise AssertionError("asked for")

    thing = Thing()
    with replaced_names_put_back(ast.parse("thing.value.x = 1"), {"thing": thing}):
        pass


def test_a_function_without_attributes_gets_none():
    namespace = {}
    exec("def f():\n    f.calls = getattr(f, 'calls', 0) + 1\n    return f.calls\n", namespace)
    assert dry("assert f() == 1 and f() == 2\n", namespace).error is None
    assert vars(namespace["f"]) == {}


def test_nothing_is_left_to_be_called_at_exit():
    before = atexit._ncallbacks()
    assert dry("import atexit\natexit.register(print, 'bye')\n", {}).error is None
    assert atexit._ncallbacks() == before


def test_what_the_cell_lets_go_is_gone():
    class Thing:
        pass

    namespace = {"thing": Thing(), "torch": torch}
    gone = weakref.ref(namespace["thing"])
    with replaced_names_put_back(ast.parse("torch.x = 1"), namespace):
        del namespace["thing"]
        assert gone() is None
