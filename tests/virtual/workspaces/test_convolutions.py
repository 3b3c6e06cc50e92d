"""The order in which convolutions allocate, as torch's CUDA build does on a device that computes
nothing (compute capability 7.5)."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def _first(blocks, run):
    blocks()
    kept = run()
    return blocks(), kept


def test_an_image_in_another_layout_is_copied_for_the_kernel(blocks):
    x = torch.ones(4, 32, 32, 32, device="cuda")[:, :16]
    conv = nn.Conv2d(16, 32, 3, padding=1, device="cuda")
    assert _first(blocks, lambda: conv(x))[0] == [262144, 524288, -262144]


def test_a_weight_is_copied_to_channels_last_where_the_image_is(blocks):
    x = torch.ones(4, 16, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    conv = nn.Conv2d(16, 32, 3, padding=1, device="cuda")
    assert _first(blocks, lambda: conv(x))[0] == [524288, 18432, -18432]


def test_an_expanded_gradient_is_copied_for_each_of_the_two_kernels(blocks):
    x = torch.ones(4, 16, 32, 32, device="cuda", requires_grad=True)
    y = nn.Conv2d(16, 32, 3, padding=1, bias=False, device="cuda")(x)
    total = y.sum()
    blocks()
    total.backward()
    assert blocks()[:6] == [4, 262144, 524288, -524288, 524288, 18432]


def test_depthwise_kernels_of_torch_copy_once_and_write_the_weights_gradient_first(blocks):
    x = torch.ones(4, 16, 32, 32, device="cuda", requires_grad=True)
    total = nn.Conv2d(16, 16, 3, padding=1, groups=16, device="cuda")(x).sum()
    blocks()
    total.backward()
    assert blocks()[1:6] == [262144, 576, 262144, -262144, 64]


@pytest.mark.parametrize(
    ("dtype", "taken_besides"),
    [(torch.float16, []), (torch.bfloat16, [294912, 8519680, -294912])],
)
def test_a_turing_card_multiplies_matrices_for_bfloat16(blocks, dtype, taken_besides):
    x = torch.ones(4, 16, 32, 32, device="cuda", dtype=dtype)
    conv = nn.Conv2d(16, 32, 3, padding=1, bias=False, device="cuda", dtype=dtype)
    taken, _ = _first(blocks, lambda: conv(x))
    assert taken == [262144, *taken_besides]


def test_pooling_wants_the_gradient_in_the_layout_of_its_input(blocks):
    x = torch.ones(8, 16, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = nn.functional.max_pool2d(x.requires_grad_(), 2)
    gradient = torch.ones(y.shape, device="cuda")
    blocks()
    y.backward(gradient)
    assert blocks()[:3] == [524288, 131072, -131072]


def test_an_operator_with_a_kernel_is_not_taken_apart(blocks):
    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = nn.functional.silu(x)
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    assert blocks() == [4000]
