"""Products: their gradient by division, as on a GPU, and by cumulative products where zeros are."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic import predict


@pytest.mark.parametrize("how", [{}, {"dim": 1}, {"dim": -1, "keepdim": True}], ids=str)
@pytest.mark.parametrize("zeros", [0, 1])
def test_the_gradient_of_a_product_is_the_hosts(gpu, how, zeros):
    on_host = torch.rand(3, 4, 2) + 0.5
    on_host[0, :zeros, 0] = 0
    on_device = on_host.cuda().requires_grad_()
    on_host.requires_grad_().prod(**how).sum().backward()
    torch.prod(on_device, **how).sum().backward()
    assert torch.allclose(on_device.grad.cpu(), on_host.grad)


def test_products_are_scripted_and_checked_as_without_us(gpu):
    @torch.jit.script
    def scripted(x: torch.Tensor):
        return torch.prod(x, 1) + x.prod()

    x = torch.rand(3, 3, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.equal(scripted(x).cpu(), scripted(x.detach().cpu()))
    assert torch.autograd.gradcheck(lambda x: x.prod(1), (x,))
    assert torch.autograd.gradgradcheck(lambda x: x.prod(1), (x,))
    assert torch.func.grad(torch.prod)(x).shape == x.shape


def test_zeros_are_counted_before_it_is_divided(blocks):
    x = torch.ones(5, 5, 5, device="cuda", requires_grad=True)
    y = x.prod(1)
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    assert blocks() == [125, 200, 1000, -1000, 8, -8, 500, 500, -500, -200, -125]


def test_a_prediction_assumes_that_no_factor_is_zero():
    code = """
import torch
x = torch.randn(256, 4, 256, device="cuda", requires_grad=True)
x.prod(1).sum().backward()
x.grad = None
x.prod().backward()
"""
    report = predict(code, {}, gpu="T4")
    assert report.error is None
    assert not report.notes
    assert report.lines[-1].peak < 4.6 * 256 * 4 * 256 * 4
