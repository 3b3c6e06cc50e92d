"""Recurrent layers that cuDNN does not run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

STEPS, BATCH, WIDTH = 6, 8, 64
STATE = BATCH * WIDTH * 4


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_values_and_gradients_are_the_hosts(gpu, kind, options):
    layer = kind(5, 7, batch_first=True, **options)
    x = torch.randn(3, 4, 5)
    found = []
    for device in ("cpu", "cuda"):
        layer.to(device).zero_grad()
        with torch.backends.cudnn.flags(enabled=False):
            out, state = layer(x.to(device))
            last = state if isinstance(state, tuple) else (state,)
            (out.square().sum() + sum(each.sum() for each in last)).backward()
        tensors = (out, *last, *(p.grad for p in layer.parameters()))
        found.append([t.detach().cpu().clone() for t in tensors])
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize(
    ("kind", "each_step"), [(nn.GRU, [3, 3, 5, 1]), (nn.LSTM, [4, 4, 4, 1, 1])]
)
def test_each_step_makes_its_own_products(gpu, blocks, kind, each_step):
    # GIVEN a layer whose type cuDNN has no kernel for on this card
    layer = kind(WIDTH, WIDTH, bias=False).cuda().bfloat16()
    x = torch.ones(STEPS, BATCH, WIDTH, dtype=torch.bfloat16, device="cuda")
    layer(x)
    blocks()
    out = layer(x)
    # THEN after the first states every step takes two products, the buffer of its kernel and its
    # states, and all outputs and the last states are put together; nothing is made at once
    half = STATE // 2
    taken = [size / half for size in blocks() if size > 0]
    states = [1, 1] if kind is nn.LSTM else [1]
    assert taken == [*states, *each_step * STEPS, STEPS, *states]
    assert out[0].dtype is torch.bfloat16


def test_dropout_is_between_the_layers_alone(gpu, blocks):
    layer = nn.RNN(WIDTH, WIDTH, 3, dropout=0.5).cuda()
    x = torch.ones(STEPS, BATCH, WIDTH, device="cuda")
    with torch.backends.cudnn.flags(enabled=False):
        layer(x)
        blocks()
        layer(x)
        assert [size for size in blocks() if size > 0].count(STEPS * BATCH * WIDTH) == 2
        layer.eval()(x)
        assert STEPS * BATCH * WIDTH not in blocks()


def test_a_layer_with_projections_is_the_hosts(gpu):
    layer = nn.LSTM(5, 7, proj_size=3)
    x = torch.randn(4, 2, 5)
    expected = layer(x)[0]
    with torch.backends.cudnn.flags(enabled=False):
        found = layer.cuda()(x.cuda())[0]
    torch.testing.assert_close(found.cpu(), expected)
