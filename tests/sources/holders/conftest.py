"""A notebook on a virtual T4: cells run in a fresh shell, and who holds what is asked from it."""

from __future__ import annotations

import contextlib
import gc
import io
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer would import it, which changes torch

from gpumem_magic.magics.shell_places import error_places, output_places, shell_roots  # noqa: E402
from gpumem_magic.sources.holders import break_down, take_inventory  # noqa: E402
from gpumem_magic.sources.holders.letting_go import (  # noqa: E402
    collect_cycles,
    drop_errors,
    drop_outputs,
    empty_cache,
    let_go,
)
from gpumem_magic.virtual.catalog import lookup  # noqa: E402
from gpumem_magic.virtual.source import VirtualSource  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _nothing_old(nothing_old):
    """Every look passes over all objects."""


class Notebook:
    """Runs cells on a card and answers for their memory. died[n]: a weak reference to a storage."""

    def __init__(self, shell, source):
        self.shell = shell
        self.source = source
        self.printed = ""
        shell.user_ns["watch"] = self.watch
        self.storage = None

    def watch(self, tensor):
        """For cells: remember the storage of a tensor weakly, and hand the tensor on."""
        self.storage = weakref.ref(tensor.untyped_storage())
        return tensor

    def run(self, *cells):
        for cell in cells:
            self.source.enter()
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.shell.run_cell(cell, store_history=True)
            self.source.leave()
            self.printed = printed.getvalue()

    def inventory(self):
        found = take_inventory(self.source, self.shell.user_ns, shell_roots(self.shell))
        assert sum(holding.size for holding in found.holdings) == self.source.level().allocated
        return found

    def holders(self, size):
        """The holdings of exactly so many bytes."""
        return [h for h in self.inventory().holdings if h.size == size]

    def parts(self, name):
        roots = shell_roots(self.shell)
        return break_down(self.source, self.shell.user_ns, roots, name)

    def free(self, *what):
        steps = {
            "cycles": collect_cycles(),
            "errors": drop_errors(error_places(self.shell)),
            "outputs": drop_outputs(output_places(self.shell)),
            "cache": empty_cache(),
        }
        return let_go(self.source, [steps[name] for name in what])

    @property
    def alive(self):
        return self.storage() is not None


@pytest.fixture
def notebook(shell):
    """A fresh shell on a virtual T4; Python's garbage collector runs only when it is asked to."""
    source = VirtualSource(lookup("T4"))
    gc.collect()
    gc.disable()
    notebook = Notebook(shell, source)
    notebook.run("import torch, functools\nfrom torch import nn")
    try:
        yield notebook
    finally:
        gc.enable()
        notebook.free("errors", "outputs")
        shell.user_ns.clear()
        source.close()
        gc.collect()
