"""What a node of an autograd graph has saved, read where PyTorch does not show it itself."""

from __future__ import annotations

import sys

import pytest

from gpumem_magic.sources.objects.contents import _unpacked, raw_saved

torch = pytest.importorskip("torch")


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_it_is_the_tensor_without_its_graph():
    weight = torch.ones(3, 3, requires_grad=True)
    product = torch.ones(2, 3).mul(2) @ weight
    result = product.tanh()
    (kept,) = _unpacked(result.grad_fn, "_saved_result")
    assert kept.data.data_ptr() == result.data_ptr()
    assert kept.data.grad_fn is None
    assert _unpacked((weight * product.sum()).grad_fn, "_saved_self")[0].data is weight
    custom = _Double.apply(weight.exp())
    assert _unpacked(custom.grad_fn, "saved_tensors")[0].data.shape == (3, 3)
    stacked = torch.atleast_2d(torch.func.vmap(torch.sin)(result)).logcumsumexp(0)
    assert [saved.data is not None for _, saved in raw_saved(stacked.grad_fn)] == [True, True]


def test_no_hook_runs_and_what_was_freed_is_nothing():
    ran = []
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: ran.append(t) or t):
        hooked = x.exp()
    assert _unpacked(hooked.grad_fn, "_saved_result") == []
    assert not ran
    gone = x.exp()
    gone.sum().backward()
    assert _unpacked(gone.grad_fn, "_saved_result") == []
    assert sys.getprofile() is None


def test_a_profiler_of_the_user_stays():
    def profile(frame, event, argument):
        return None

    kept = torch.ones(3, requires_grad=True).exp()
    sys.setprofile(profile)
    try:
        assert _unpacked(kept.grad_fn, "_saved_result") == []
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
