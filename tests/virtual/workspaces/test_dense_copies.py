"""What copies between host and device take, as torch's CUDA build does on a device that computes
nothing."""

from __future__ import annotations

import torch


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


def test_a_number_of_the_host_is_taken_along(blocks):
    x = torch.ones(512, 512, device="cuda")
    mask = x > 0
    assert _asked(blocks, lambda: torch.where(mask, x, 0.0))[0] == [4, 1048576, -4]
