"""What copies between host and device take, as torch's CUDA build does on a device that computes
nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional


def _asked(blocks, run):
    blocks()
    kept = run()
    return blocks(), kept


def test_what_arrives_in_another_layout_comes_dense_first(blocks):
    x = torch.ones(8, 3, 64, 64)
    found, _ = _asked(blocks, lambda: x.to("cuda", memory_format=torch.channels_last))
    assert found == [393216, 393216, -393216]


def test_the_host_converts_for_who_waits_and_the_device_for_who_does_not(blocks):
    x = torch.ones(512, 512)
    assert _asked(blocks, lambda: x.to("cuda", torch.float16))[0] == [524288]
    found, _ = _asked(blocks, lambda: x.to("cuda", torch.float16, non_blocking=True))
    assert found == [524288, 1048576, -1048576]


def test_what_leaves_is_dense(blocks):
    x = torch.ones(512, 512, device="cuda")
    assert _asked(blocks, x.cpu)[0] == []
    assert _asked(blocks, x.t().cpu)[0] == []
    assert _asked(blocks, x[:, ::2].cpu)[0] == [524288, -524288]


def test_what_rolls_in_two_dimensions_rolls_in_one_first(blocks):
    x = torch.ones(512, 512, device="cuda")
    assert _asked(blocks, lambda: x.roll(3, 1))[0] == [1048576]
    assert _asked(blocks, lambda: x.roll((3, 3), (0, 1)))[0] == [1048576, 1048576, -1048576]


def test_a_number_of_the_host_is_taken_along(blocks):
    x = torch.ones(512, 512, device="cuda")
    mask = x > 0
    assert _asked(blocks, lambda: torch.where(mask, x, 0.0))[0] == [4, 1048576, -4]


@pytest.mark.parametrize(("mode", "copy"), [("nearest", [65536, -65536]), ("bilinear", [])])
def test_interpolation_takes_pieces_of_images_dense(blocks, mode, copy):
    image = torch.ones(2, 8, 64, 64, device="cuda")
    piece, rows = image[:, :, 8:40, 8:40], image.to(memory_format=torch.channels_last)
    found, _ = _asked(blocks, lambda: functional.interpolate(piece, (64, 64), mode=mode))
    assert found == [262144, *copy]
    assert _asked(blocks, lambda: functional.interpolate(rows, (64, 64), mode=mode))[0] == [262144]


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_gradients_of_interpolation_are_taken_dense(blocks, mode):
    x = torch.ones(2, 8, 32, 32, device="cuda", requires_grad=True)
    y = functional.interpolate(x, (64, 64), mode=mode)
    slices = torch.ones(2, 16, 64, 64, device="cuda")[:, 8:]
    found, _ = _asked(blocks, lambda: torch.autograd.grad(y, x, slices))
    assert found == [65536, 262144, -262144]
