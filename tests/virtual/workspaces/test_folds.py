"""Sliding windows and adaptive pooling: bytes in the order of CUDA's kernels."""

from __future__ import annotations

import torch
from torch.nn import functional

IMAGE = 2 * 4 * 16 * 16 * 4
PATCHES = 2 * (4 * 9) * 49 * 4


def test_unfolding_begins_with_the_size_of_its_input(blocks):
    x = torch.ones(2, 4, 16, 16, device="cuda")
    blocks()
    y = functional.unfold(x, 3, stride=2)
    assert blocks() == [IMAGE, PATCHES, -IMAGE]
    assert y.shape == (2, 36, 49)
    torch.testing.assert_close(y.cpu(), torch.ones(2, 36, 49))


def test_an_input_with_gaps_is_copied(blocks):
    x = torch.ones(2, 4, 16, 32, device="cuda")[..., ::2]
    blocks()
    y = functional.unfold(x, 3, stride=2)
    assert blocks() == [IMAGE, IMAGE, PATCHES, -IMAGE, -IMAGE]
    del y


def test_what_is_folded_keeps_the_memory_of_its_patches(blocks, allocated):
    patches = torch.ones(2, 36, 49, device="cuda")
    blocks()
    before = allocated()
    # WHEN overlapping patches are added up
    image = functional.fold(patches, (16, 16), 3, stride=2)
    # THEN the image lies in a block as large as they are
    assert blocks() == [PATCHES]
    assert allocated() - before == -(-PATCHES // 512) * 512
    del image
    assert blocks() == [-PATCHES]


def test_pooling_with_channels_last_goes_through_dense_copies(blocks):
    x = torch.ones(2, 4, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    blocks()
    y = functional.adaptive_max_pool2d(x, 4)
    values, places = 2 * 4 * 16 * 4, 2 * 4 * 16 * 8
    taken = [values, places, IMAGE]
    assert blocks() == [values, places, *taken, *(-size for size in reversed(taken))]
    # AND so backward
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    assert blocks()[:4] == [IMAGE, values, places, IMAGE]


def test_dense_pooling_takes_its_results_alone(blocks):
    x = torch.ones(2, 4, 16, 16, device="cuda")
    blocks()
    y, at = functional.adaptive_max_pool2d(x, 4, return_indices=True)
    assert blocks() == [2 * 4 * 16 * 4, 2 * 4 * 16 * 8]
    del y, at
