"""What operators take for inputs, gradients and indices that are not dense on the device, as
torch's CUDA build does on a device that computes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

ROWS, WIDTH = 64, 512


def _normed(x):
    return functional.layer_norm(x, (WIDTH,), torch.ones(WIDTH, device="cuda", requires_grad=True))


def _write(x):
    x.detach()[torch.arange(ROWS) > 3] = 0


def _places(x):
    return torch.zeros(40, dtype=torch.long, device="cuda")


def _batch_normed(x):
    return nn.BatchNorm1d(ROWS, device="cuda")(x.view(1, WIDTH, ROWS).transpose(1, 2))


def _convolved(x):
    weight = torch.ones(8, ROWS, 1, device="cuda", requires_grad=True)
    return functional.conv1d(x.view(1, WIDTH, ROWS).transpose(1, 2), weight)


FORWARD = {
    "rms norm": (lambda x: functional.rms_norm(x.t(), (ROWS,)), [131072, 131072, 2048, -131072]),
    "batch norm": (_batch_normed, [256, 256, 256, 256, 8, 131072, 131072, 256, 256, -8]),
    "max pool": (
        lambda x: functional.max_pool2d(x[None, None, :, :100], 2),
        [6400, 12800, 25600, -25600],
    ),
    "avg pool": (lambda x: functional.avg_pool2d(x[None, None, :, :100], 2), [6400, 25600, -25600]),
    "mask of the host": (lambda x: x.detach()[torch.arange(ROWS) > 3], [480, 122880, -480]),
    "number and mask of the host": (_write, [4, 480, -480, -4]),
    "deviation for all": (lambda x: torch.normal(x.detach(), 1.0), [131072, 131072, -131072]),
    "norms of slices": (lambda x: x.detach().renorm(2, 0, 1.0), [131072, 256, -256]),
    "norms of vectors": (
        lambda x: functional.embedding(_places(x), x.detach(), max_norm=1.0),
        [320, 320, 320, 320, -320, -320, 320, 8, 1023, -1023, -8, -320, -320, 81920, -320],
    ),
}
BACKWARD = {
    "layer norm": (_normed, [4, 131072, 2048, 131072, -131072, -256, -256, -4]),
    "convolution": (
        _convolved,
        [4, 131072, 131072, 16384, -16384, 16384, 2048, -16384, -131072, 131072, -131072, -4],
    ),
    "host indices": (
        lambda x: x[torch.arange(40), torch.arange(40)],
        [4, 131072, 320, 320, -320, 160, 320, 320, 320, 1, -1, -320, -320, -320, -160, -320, -4],
    ),
    "host mask": (
        lambda x: x[torch.arange(ROWS) > 3],
        [4, 131072, 480, 122880, 480, 480, 480, 1, -1, -480, -480, -480, -122880, -480, -4],
    ),
    "windows": (lambda x: x.unfold(1, 8, 4), [4, 131072, 4096, -4096, -4]),
    "window of a number": (lambda x: x[0, 0].unfold(0, 1, 1), None),
    "largest": (
        lambda x: x.max(),
        [4, 32768, 1, 32768, 8, 262144, -262144, 4, 131072, -4, -8, -32768, -1, -32768, -4, -4],
    ),
}


def _leaf():
    return torch.ones(ROWS, WIDTH, device="cuda", requires_grad=True)


@pytest.mark.parametrize(("run", "events"), FORWARD.values(), ids=FORWARD)
def test_what_is_taken_for_a_result(blocks, run, events):
    x = _leaf()
    blocks()
    kept = run(x)
    assert blocks() == events
    del kept


@pytest.mark.parametrize(("run", "events"), BACKWARD.values(), ids=BACKWARD)
def test_what_is_taken_for_a_gradient(blocks, run, events):
    total = run(_leaf()).sum()
    blocks()
    total.backward()
    assert events in (None, blocks())


POOLED = {
    "average of three dimensions": lambda x: functional.avg_pool3d(x, 2),
    "adaptive average": lambda x: functional.adaptive_avg_pool3d(x, 4),
    "adaptive average of two": lambda x: functional.adaptive_avg_pool2d(x, 4),
    "highest of three dimensions": lambda x: functional.max_pool3d(x, 2),
    "fractions": lambda x: functional.fractional_max_pool2d(x, 2, output_size=4),
    "reflection": lambda x: functional.pad(x, (3, 3, 3, 3), mode="reflect"),
    "shift": lambda x: x.roll(1, 0),
}


@pytest.mark.parametrize("pool", POOLED.values(), ids=POOLED)
def test_a_gradient_that_is_expanded_is_copied(blocks, pool):
    x = torch.rand(8, 16, 16, 16, device="cuda", requires_grad=True)
    out = pool(x)
    total = out.sum()
    blocks()
    total.backward()
    assert -out.nbytes in blocks()
