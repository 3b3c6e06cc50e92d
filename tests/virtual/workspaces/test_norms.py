"""What norms take, as torch's CUDA build does on a device that computes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def _asked(blocks, run):
    blocks()
    kept = run()
    return blocks(), kept


def test_features_of_many_samples_are_summed_in_stages(blocks):
    norm = nn.BatchNorm1d(2048, affine=False, track_running_stats=False, device="cuda")
    x = torch.ones(2048, 2048, device="cuda")
    found = _asked(blocks, lambda: norm(x))[0][:7]
    assert found == [16777216, 8192, 8192, 262144, 256, -256, -262144]


def test_cudnn_keeps_no_statistics_without_training_and_torchs_kernel_does(blocks):
    x = torch.ones(8, 64, 4, 4, device="cuda")
    single = nn.BatchNorm2d(64, device="cuda").eval()
    assert _asked(blocks, lambda: single(x))[0] == [32768]
    half, x = single.half(), x.half()
    assert _asked(blocks, lambda: half(x))[0] == [16384, 256, 256]


def test_a_gradient_in_another_layout_is_copied_for_cudnn(blocks):
    x = torch.ones(8, 64, 4, 4, device="cuda").to(memory_format=torch.channels_last)
    norm = nn.BatchNorm2d(64, device="cuda")
    total = norm(x.requires_grad_()).sum()
    blocks()
    total.backward()
    assert blocks()[:5] == [4, 32768, 32768, 256, 256]


def test_layer_norm_copies_what_is_not_contiguous(blocks):
    norm = nn.LayerNorm(64, device="cuda")
    x = torch.ones(8, 64, 10, device="cuda").transpose(1, 2)
    assert _asked(blocks, lambda: norm(x))[0] == [20480, 20480, 320, 320, -20480]


def test_group_norm_keeps_a_contiguous_copy_of_channels_last(blocks):
    norm = nn.GroupNorm(8, 64, device="cuda")
    x = torch.ones(8, 64, 4, 4, device="cuda").to(memory_format=torch.channels_last)
    found, _ = _asked(blocks, lambda: norm(x.requires_grad_()))
    assert found == [32768, 32768, 256, 256, 2048, 2048, -2048, -2048]


@pytest.mark.parametrize(("release", "copy"), [((2, 14), [32768]), ((2, 15), [])])
def test_group_norm_of_later_releases_keeps_channels_last_as_they_are(
    blocks, monkeypatch, release, copy
):
    monkeypatch.setattr("gpumem_magic.virtual.devices.RELEASE", release)
    norm = nn.GroupNorm(8, 64, device="cuda")
    x = torch.ones(8, 64, 4, 4, device="cuda").to(memory_format=torch.channels_last)
    found, _ = _asked(blocks, lambda: norm(x.requires_grad_()))
    assert sorted(size for size in found if size > 0) == sorted(
        [256, 256, 2048, 2048, 32768, *copy]
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_statistics_of_layer_norm_are_single_at_least(blocks, dtype):
    x = torch.ones(64, 128, device="cuda", dtype=dtype)
    weight = torch.ones(128, device="cuda", dtype=dtype)
    blocks()
    y = torch.nn.functional.layer_norm(x, (128,), weight, weight)
    # THEN mean and deviation of each row take 4 bytes, whatever the rows are made of
    assert blocks() == [64 * 128 * dtype.itemsize, 64 * 4, 64 * 4, -64 * 4, -64 * 4]
    del y
