"""A namespace that is lent out, with storages copied as they are."""

from __future__ import annotations

import contextlib

import pytest
import torch

from gpumem_magic.sources.virtual.dryrun.copies import borrowed


class CopiesWithValues:
    """Copies storages byte by byte, each once; remembers nothing after `forget`."""

    def __init__(self):
        self.made = {}

    def copy_of(self, storage):
        if storage._cdata not in self.made:
            self.made[storage._cdata] = storage, storage.clone()
        return self.made[storage._cdata][1]

    def forget(self):
        self.made.clear()


@pytest.fixture
def lend():
    """Lends a namespace out; on the way back it must hold the very objects, in their order."""

    @contextlib.contextmanager
    def lent(namespace, names=None):
        before = list(namespace.items())
        storages = CopiesWithValues()
        try:
            with borrowed(namespace, names, storages) as found:
                storages.forget()
                yield found
        finally:
            assert [name for name, _ in before] == list(namespace)
            assert all(namespace[name] is value for name, value in before)

    return lent


@pytest.fixture
def run():
    """Runs code in a namespace as the notebook does; the namespace is the code's globals."""

    def run(code, namespace):
        namespace.setdefault("__name__", "__main__")
        exec(compile(code, "<cell>", "exec"), namespace)
        return namespace

    return run


@pytest.fixture
def bits():
    """All that can be seen of tensors: geometry, version, and their bytes."""

    def bits(*tensors):
        return [
            (t.data_ptr(), t._version, t.shape, t.stride(), t.detach().clone().tolist())
            for t in tensors
        ]

    return bits


@pytest.fixture
def tensor():
    return torch.arange(6.0).reshape(2, 3)
