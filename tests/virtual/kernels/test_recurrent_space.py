"""What an H200 gave cuDNN 9.19 for calls of recurrent layers in training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU
from gpumem_magic.virtual.kernels.recurrent_space import Space
from gpumem_magic.virtual.workspaces.recurrent_weights import Layout

MEASURED = [  # layout, batch, steps, places, itemsize, dropout, workspace, reserve
    ((4, 512, 50, 0, 1, 2), 20, 32, 640, 2, False, 21595392, 640256),
    ((1, 512, 1, 0, 2, 2), 256, 50, 12800, 2, False, 112651552, 153856),
    ((3, 32, 256, 0, 2, 1), 2, 32, 64, 4, True, 19591456, 854272),
    ((4, 40, 16, 0, 2, 2), 8, 128, 1024, 2, True, 34741568, 729344),
    ((4, 64, 20, 0, 2, 2), 256, 7, 1030, 2, False, 34497728, 906656),
    ((4, 16, 16, 0, 3, 1), 64, 200, 10784, 2, True, 26940672, 5917952),
    ((4, 5, 64, 32, 3, 2), 4, 50, 194, 4, False, 51594496, 2135808),
    ((3, 300, 128, 0, 2, 2), 2, 128, 255, 2, True, 35681184, 1713920),
    ((1, 64, 1, 0, 2, 1), 16, 64, 1024, 4, True, 17618336, 12672),
    ((4, 128, 50, 25, 2, 2), 64, 1, 64, 2, True, 34178720, 180288),
]


@pytest.mark.parametrize(
    ("layout", "batch", "steps", "places", "itemsize", "drops", "workspace", "reserve"), MEASURED
)
def test_sizes_are_those_measured(
    layout, batch, steps, places, itemsize, drops, workspace, reserve
):
    space = Space(Layout(*layout), batch, steps, places, True, drops, True)
    assert space.reserve(itemsize) == reserve
    assert space.workspace(itemsize) == pytest.approx(workspace, rel=0.03)


@pytest.mark.parametrize(("lengths", "places"), [([7, 7, 7, 7], 28), ([7, 5, 2, 1], 15)])
def test_a_layer_keeps_the_reserve_of_what_is_not_padding(lengths, places):
    rnn = nn.utils.rnn
    x = rnn.pack_padded_sequence(torch.ones(7, 4, 16), lengths)
    with VirtualGPU(lookup("H200")) as gpu:
        layer, x = nn.LSTM(16, 32).cuda(), x.to("cuda")
        before = gpu.allocator.allocated
        out, states = layer(x)
        kept = gpu.allocator.allocated - before
        tensors = [out.data, *states, *states]  # and the zeros that it began with
    space = Space(Layout(4, 16, 32, 0, 1, 1), 4, 7, places, True, False, True)
    rounded = [-(-size // 512) * 512 for size in (*(t.nbytes for t in tensors), space.reserve(4))]
    assert kept == sum(rounded)
