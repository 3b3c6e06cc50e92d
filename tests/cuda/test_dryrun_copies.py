"""Copies for a dry run of what lies on a real device."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from gpumem_magic.sources.virtual.dryrun.copies import borrowed


class HostCopies:
    """Every storage becomes one of the host; which ones were asked for is remembered."""

    def __init__(self):
        self.made = {}

    def copy_of(self, storage):
        if storage._cdata not in self.made:
            copy = torch.UntypedStorage(storage.nbytes()).fill_(0)
            self.made[storage._cdata] = storage.device.type, copy
        return self.made[storage._cdata][1]


def training():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.ones(8, 64, device="cuda")
    model(data).sum().backward()
    optimizer.step()
    model.zero_grad()
    out = model(data)
    return {"model": model, "optimizer": optimizer, "data": data, "loss": out.sum(), "out": out}


def counters():
    stats = torch.cuda.memory_stats()
    return {
        name: value for name, value in stats.items() if name.startswith(("alloc", "num", "res"))
    }


def test_copies_touch_neither_the_device_nor_the_originals():
    space = training()
    space["optimizer"].zero_grad(set_to_none=False)
    model = space["model"]
    tensors = [*model.parameters(), space["data"], space["out"], space["loss"]]
    before = [(t.data_ptr(), t._version) for t in tensors]
    torch.cuda.synchronize()
    counted = counters()
    with borrowed(space, None, HostCopies()) as found:
        assert {p.device.type for p in space["model"].parameters()} == {"cpu"}
        first = space["optimizer"].param_groups[0]["params"][0]
        assert first is space["model"][0].weight
        assert first in space["optimizer"].state
        space["loss"].backward()
        assert space["model"][0].weight.grad.shape == (64, 64)
        space["optimizer"].step()
        assert len(found.notes) == 1
    assert counters() == counted
    assert [(t.data_ptr(), t._version) for t in tensors] == before
    assert space["model"] is model
    assert all(p.grad is None for p in model.parameters())
    space["loss"].backward()


def test_the_graph_of_an_earlier_cell_holds_copies_of_the_same_storages():
    space = training()
    storages = HostCopies()
    saved = space["loss"].grad_fn.next_functions[0][0]._saved_mat1.untyped_storage()._cdata
    with borrowed(space, None, storages):
        assert saved in storages.made
        alive = weakref.ref(storages.made.pop(saved)[1])
        assert alive() is not None
        space["loss"].backward()
        gc.collect()
        assert alive() is None


def test_sparse_tensors_on_the_device_are_refused_by_name():
    space = {"rows": [torch.eye(2).to_sparse().cuda()]}
    refused = pytest.raises(NotImplementedError, match=r"rows\[0\].*sparse_coo")
    with refused, borrowed(space, None, HostCopies()):
        raise AssertionError


def test_device_generators_and_streams():
    space = {
        "generator": torch.Generator("cuda"),
        "stream": torch.cuda.Stream(),
        "event": torch.cuda.Event(),
        "scaler": torch.amp.GradScaler(),
    }
    space["scaler"].scale(torch.ones(1, device="cuda"))
    with borrowed(space, None, HostCopies()) as found:
        assert space["scaler"]._scale.device.type == "cpu"
        assert found.notes == ()


def test_originals_are_not_held_afterwards():
    training()
    gc.collect()
    held = torch.cuda.memory_allocated()
    space = training()
    with borrowed(space, None, HostCopies()):
        pass
    assert torch.cuda.memory_allocated() > held
    space.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == held
