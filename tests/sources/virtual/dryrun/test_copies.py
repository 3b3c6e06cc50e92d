from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
from torch import nn


def training(**more):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.randn(5, 3)
    model(data).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "data": data, **more}


STEP = """
optimizer.zero_grad()
loss = model(data).pow(2).sum()
loss.backward()
optimizer.step()
"""


def state(space, bits):
    model, optimizer = space["model"], space["optimizer"]
    states = [v for s in optimizer.state.values() for v in s.values()]
    grads = [p.grad for p in model.parameters()]
    return bits(*model.parameters(), *model.buffers(), *grads, *states, space["data"])


def test_a_training_step_on_copies_leaves_the_originals_bit_for_bit(lend, run, bits):
    space = training()
    before = state(space, bits)
    weight = space["model"][0].weight
    with lend(space) as found:
        run(STEP, space)
        assert space["model"][0].weight is not weight
        assert not torch.equal(space["model"][0].weight, weight)
        assert "loss" in space
    assert state(space, bits) == before
    assert found.notes == ()
    assert "loss" not in space


def test_the_step_is_the_one_that_the_originals_would_have_made(lend, run):
    space = training()
    with lend(space):
        run(STEP, space)
        dry = [p.detach().clone() for p in space["model"].parameters()]
    run(STEP, space)
    assert all(map(torch.equal, dry, space["model"].parameters()))


def test_copies_know_each_other(lend):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    space = {"schedule": schedule, "optimizer": optimizer, "models": [model], "model": model}
    with lend(space):
        copied = space["model"]
        assert copied is space["models"][0] is not model
        assert space["optimizer"].param_groups[0]["params"][0] is copied.weight
        assert copied.weight in space["optimizer"].state
        assert space["schedule"].optimizer is space["optimizer"]
        rates = [group["lr"] for group in optimizer.param_groups]
        space["optimizer"].step()
        space["schedule"].step()
        assert space["optimizer"].param_groups[0]["lr"] == pytest.approx(0.1)
    assert [group["lr"] for group in optimizer.param_groups] == rates


def test_copies_die_with_the_names_that_hold_them(lend, run):
    space = training()
    with lend(space):
        storage = weakref.ref(space["data"].untyped_storage())
        weight = weakref.ref(space["model"][0].weight)
        assert storage() is not None
        run("del data", space)
        assert storage() is None
        run("del optimizer, model", space)
        gc.collect()
        assert weight() is None


def test_originals_are_not_held_afterwards(lend, run):
    space = training()
    gc.collect()
    seen = [weakref.ref(x) for x in (space["model"], space["optimizer"], space["data"])]
    seen += [weakref.ref(p) for p in space["model"].parameters()]
    with lend(space):
        run(STEP, space)
    space.clear()
    gc.collect()
    assert [ref() for ref in seen] == [None] * len(seen)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_everything_comes_back_when_the_cell_ends_badly(lend, run, bits, error):
    space = training()
    before = state(space, bits)
    with pytest.raises(error), lend(space):  # noqa: PT012  (the cell is more than one statement)
        run(STEP, space)
        run("del model; optimizer = None; new = 1", space)
        raise error
    assert state(space, bits) == before


def test_only_what_is_reached_is_copied_but_all_is_put_back(lend):
    space = {"a": [1], "b": [2], "c": [3]}
    kept = space["b"]
    with lend(space, frozenset({"a"})):
        assert space["b"] is kept
        space["a"].append(4)
        space["c"] = 5
        del space["b"]
        space["b"] = 6
    assert space == {"a": [1], "b": [2], "c": [3]}


def test_what_other_names_hold_outlives_a_del(lend, run):
    model = nn.Linear(2, 2)
    view = model.bias.detach()
    space = {"model": model, "other": [model], "part": view, "data": torch.ones(3)}
    with lend(space, frozenset({"model", "data"})):
        weight = weakref.ref(space["model"].weight.untyped_storage())
        bias = weakref.ref(space["model"].bias.untyped_storage())
        data = weakref.ref(space["data"].untyped_storage())
        run("del model, data", space)
        gc.collect()
        assert weight() is not None
        assert bias() is not None
        assert data() is None


def test_gradients_can_be_let_go_though_another_name_holds_the_parameter(lend, run):
    space = training()
    with lend(space, frozenset({"optimizer"})):
        parameter = space["optimizer"].param_groups[0]["params"][0]
        gradient = weakref.ref(parameter.grad.untyped_storage())
        run("optimizer.zero_grad()", space)
        assert gradient() is None


def test_without_other_names_nothing_is_kept(lend):
    with lend({"model": nn.Linear(2, 2)}) as found:
        assert found.kept == ()


def test_what_is_on_the_device_without_a_stand_in_is_refused_before_anything_happens(
    lend, monkeypatch
):
    space = {"matrix": torch.eye(2).to_sparse(), "data": torch.ones(2)}
    data = space["data"]
    elsewhere = property(lambda tensor: True)
    monkeypatch.setattr(
        "gpumem_magic.sources.virtual.dryrun.tensor_copies._is_cuda", elsewhere.fget
    )
    refused = pytest.raises(NotImplementedError, match=r"`matrix` is a tensor of torch\.sparse_coo")
    with refused, lend(space):
        raise AssertionError
    assert space["data"] is data


def test_deepcopy_and_tensors_are_torchs_own_again(lend, torch_attributes):
    import copy

    deepcopy, before = copy.deepcopy, torch_attributes()
    with lend({"model": nn.Linear(2, 2)}):
        assert copy.deepcopy is deepcopy
        assert torch_attributes() == before


class _Importer:
    """Imports a module while it is copied, as some of torch's classes do."""

    def __deepcopy__(self, memo):
        import late_import

        return late_import.deepcopy(self.inside, memo)


def test_a_module_imported_while_copying_keeps_nothing_alive(lend, tmp_path, monkeypatch):
    (tmp_path / "late_import.py").write_text("from copy import deepcopy")
    monkeypatch.syspath_prepend(tmp_path)
    space = {"one": _Importer()}
    space["one"].inside = nn.Linear(2, 2)
    alive = weakref.ref(space["one"].inside)
    with lend(space):
        pass
    assert "late_import" in sys.modules
    space.clear()
    gc.collect()
    try:
        assert alive() is None
        assert sys.modules["late_import"].deepcopy([1]) == [1]
    finally:
        del sys.modules["late_import"]
