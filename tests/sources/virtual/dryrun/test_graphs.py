from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def earlier(**more):
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(dim=-1))
    out = model(torch.randn(5, 3))
    return {"model": model, "out": out, "loss": out.pow(2).sum(), **more}


def test_a_backward_pass_through_an_earlier_cells_graph_reaches_every_leaf(lend):
    space = earlier()
    model, loss = space["model"], space["loss"]
    with lend(space) as found:
        assert space["loss"].item() == loss.item()
        assert space["loss"].grad_fn is not None
        space["loss"].backward()
        grads = [p.grad for p in space["model"].parameters()]
        assert [g.shape for g in grads] == [p.shape for p in model.parameters()]
        assert [g.stride() for g in grads] == [p.stride() for p in model.parameters()]
        with pytest.raises(RuntimeError, match="second time"):
            space["loss"].backward()
    assert len(found.notes) == 1
    assert "approximated" in found.notes[0]
    assert all(p.grad is None for p in model.parameters())
    loss.backward()  # the original's graph is whole
    assert all(p.grad is not None for p in model.parameters())


def held_storages(loss, known=()):
    """Weak references to the storages that the steps of a copied graph hold."""
    found, waiting = {}, [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        for storage in getattr(getattr(node, "held", None), "storages", ()):
            found[storage._cdata] = weakref.ref(storage)
        waiting += [before for before, _ in node.next_functions]
    return [ref for key, ref in found.items() if key not in known]


def test_what_the_graph_holds_is_let_go_in_backward(lend):
    space = earlier()
    with lend(space):
        named = [*space["model"].parameters(), space["out"], space["loss"]]
        named = {t.untyped_storage()._cdata for t in named}
        held = held_storages(space["loss"], named)
        assert len(held) == 2  # the input of each linear layer; softmax's output has a name
        assert all(ref() is not None for ref in held)
        space["loss"].backward(retain_graph=True)
        assert all(ref() is not None for ref in held)
        space["loss"].backward()
        gc.collect()
        assert [ref() for ref in held] == [None] * len(held)


def test_outputs_of_one_graph_share_what_it_holds(lend):
    space = earlier()
    with lend(space):
        known = {p.untyped_storage()._cdata for p in space["model"].parameters()}
        both = {ref()._cdata for ref in held_storages(space["loss"], known)}
        assert {ref()._cdata for ref in held_storages(space["out"], known)} <= both
        refs = held_storages(space["loss"], known | {space["out"].untyped_storage()._cdata})
        space["loss"].backward()
        assert [ref() for ref in refs] == [None] * len(refs)


def test_a_graph_goes_with_the_name_that_holds_it(lend, run):
    space = earlier()
    with lend(space):
        refs = held_storages(
            space["loss"], {p.untyped_storage()._cdata for p in space["model"].parameters()}
        )
        run("loss = out = None", space)
        gc.collect()
        assert [ref() for ref in refs] == [None] * len(refs)


def test_a_graph_whose_memory_is_freed_says_so_again(lend):
    space = earlier()
    space["loss"].backward()
    with lend(space), pytest.raises(RuntimeError, match="second time"):
        space["loss"].backward()


def test_checkpoints_are_not_recomputed_to_see_what_they_hold(lend):
    calls = []
    layer = nn.Linear(3, 3)

    def block(x):
        calls.append(1)
        return layer(x).relu()

    data = torch.randn(2, 3, requires_grad=True)
    out = checkpoint(block, data, use_reentrant=False)
    with lend(space := {"out": out, "layer": layer}):
        space["out"].sum().backward()
        assert space["layer"].weight.grad.shape == (3, 3)
    assert calls == [1]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        ctx.factor = torch.ones(7)
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def test_functions_of_the_users_hold_what_they_saved(lend):
    data = torch.randn(4, requires_grad=True)
    with lend(space := {"out": Scaled.apply(data), "data": data}):
        sizes = sorted(ref().nbytes() for ref in held_storages(space["out"]))
        assert sizes == [16, 28]
        space["out"].sum().backward()
        assert space["data"].grad.shape == (4,)


def test_results_with_several_outputs_and_kept_gradients(lend):
    data = torch.randn(6, 4, requires_grad=True)
    parts = data.mul(2).split(2)
    values, places = data.exp().max(dim=0)
    middle = data.exp()
    middle.retain_grad()
    middle.sum().backward()
    data.grad = None
    space = {"parts": parts, "values": values, "places": places, "data": data, "middle": middle}
    with lend(space):
        assert space["places"].dtype == torch.int64
        assert space["middle"].grad.tolist() == torch.ones(6, 4).tolist()
        (space["parts"][1].sum() + space["values"].sum()).backward()
        assert space["data"].grad.shape == (6, 4)
    assert data.grad is None


def test_leaves_that_have_no_name_are_copied_too(lend, run):
    hidden = torch.ones(3, requires_grad=True)
    out = hidden * torch.ones(3)
    with lend(space := {"out": out}):
        space["out"].sum().backward()
    assert hidden.grad is None


def test_hooks_on_results(lend):
    out = torch.ones(3, requires_grad=True) * 2
    calls = []
    out.register_hook(lambda gradient: calls.append(gradient.shape))
    with lend(space := {"out": out, "calls": calls}):
        space["out"].sum().backward()
        assert space["calls"] == [(3,)]
    assert calls == []
