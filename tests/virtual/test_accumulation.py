"""Sums that torch makes in place stay in place under the tracker."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_the_second_of_two_gradients_is_added_to_the_first(blocks):
    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = x * 1.0
    loss = (y.exp() + y.sin()).sum()
    del y
    blocks()
    loss.backward()
    # exp's gradient, the cosine, sine's gradient, that of x by way of the product: none for the sum
    assert blocks().count(4000) == 4
    assert torch.allclose(x.grad, x.exp() + x.cos())


def test_a_gradient_that_is_held_elsewhere_is_left_alone(gpu):
    seen = []
    x = torch.ones(8, device="cuda", requires_grad=True)
    y = x * 1.0
    y.exp().register_hook(seen.append)
    a, b = y.exp(), y.sin()
    a.register_hook(seen.append)
    (a + b).sum().backward()
    assert all(torch.equal(gradient, torch.ones(8, device="cuda")) for gradient in seen)
    assert torch.allclose(x.grad, x.exp() + x.cos())


CUBLAS = 8_519_680


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_the_bias_of_a_layer_is_added_in_place(blocks, mode):
    layer = nn.Linear(32, 64).cuda()
    x = torch.randn(4, 8, 32, device="cuda").transpose(0, 1)
    layer(x)
    blocks()
    with mode():
        y = layer(x)
    assert blocks().count(4 * 8 * 64 * 4) == 1
    expected = x.reshape(-1, 32) @ layer.weight.t() + layer.bias
    assert torch.allclose(y.reshape(-1, 64), expected, atol=1e-6)


def test_it_is_so_too_where_a_checkpoint_computes_again(blocks):
    layer = nn.Linear(32, 64).cuda()
    x = torch.randn(4, 8, 32, device="cuda", requires_grad=True)
    y = checkpoint(lambda t: layer(t.transpose(0, 1)).sin(), x, use_reentrant=False)
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    again = [size for size in blocks() if size != CUBLAS]
    assert again[:4] == [4096, 8192, 8192, 8192]  # input, product; cosine, its gradient


def test_sums_that_user_code_writes_are_new_tensors(gpu):
    x, weight, bias = (torch.ones(*shape, device="cuda") for shape in ((4, 3), (3, 2), (2,)))
    product = x @ weight
    total = product + bias
    assert (product.tolist(), total.tolist()) == ([[3, 3]] * 4, [[4, 4]] * 4)
    assert ((x @ weight) + bias).tolist() == [[4, 4]] * 4
    assert torch.add(x @ weight, bias, alpha=2).tolist() == [[5, 5]] * 4


def test_gradients_of_layers_with_strided_inputs_are_right(gpu):
    layer = nn.Linear(3, 2).cuda()
    x = torch.randn(4, 5, 3, device="cuda").transpose(0, 1)
    layer(x).square().sum().backward()
    found = layer.weight.grad.clone(), layer.bias.grad.clone()
    layer.zero_grad()
    (x.reshape(-1, 3) @ layer.weight.t() + layer.bias).square().sum().backward()
    assert torch.allclose(found[0], layer.weight.grad, atol=1e-4)
    assert torch.allclose(found[1], layer.bias.grad, atol=1e-4)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_overlapping_views_are_added_by_indices_beside_their_gradient(blocks, device):
    torch.zeros(1, device="cuda").new_zeros(1)
    x = torch.ones(1024, device=device, requires_grad=True)
    windows = (x * 1).as_strided((3, 512), (256, 1))
    blocks()
    windows.sum().backward()
    assert blocks().count(8 * 1024) == (device == "cuda")
    assert x.grad.max() == 2
