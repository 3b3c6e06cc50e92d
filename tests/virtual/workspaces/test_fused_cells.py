"""Single steps of LSTM and GRU: bytes in their order, and values as the host has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

CUBLAS = 8_519_680
BATCH, INPUTS, WIDTH = 8, 64, 128
STATE = BATCH * WIDTH * 4


def _step(cell, inputs, state):
    out = cell(inputs, (state, state) if isinstance(cell, nn.LSTMCell) else state)
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize(
    ("kind", "gates", "kept", "states"), [(nn.LSTMCell, 4, 4, 2), (nn.GRUCell, 3, 5, 1)]
)
def test_a_step_takes_two_products_a_buffer_and_its_states(blocks, kind, gates, kept, states):
    cell = kind(INPUTS, WIDTH).cuda()
    x, h = torch.ones(BATCH, INPUTS).cuda(), torch.ones(BATCH, WIDTH).cuda()
    blocks()
    out = _step(cell, x, h)
    # THEN first both products, then what backward needs, then the states; all of it is kept
    product = gates * STATE
    assert blocks() == [product, CUBLAS, product, kept * STATE, *[STATE] * states]
    del out
    assert sum(blocks()) == -(2 * product + kept * STATE + states * STATE)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_without_gradients_only_the_states_stay(blocks, kind):
    cell = kind(INPUTS, WIDTH).cuda()
    x, h = torch.ones(BATCH, INPUTS).cuda(), torch.ones(BATCH, WIDTH).cuda()
    with torch.no_grad():
        _step(cell, x, h)
        blocks()
        out = _step(cell, x, h)
    assert sum(blocks()) == len(out) * STATE


def test_backward_of_an_lstm_step_makes_the_gates_once(blocks):
    cell = nn.LSTMCell(INPUTS, WIDTH).cuda()
    x, h = torch.ones(BATCH, INPUTS).cuda(), torch.ones(BATCH, WIDTH).cuda()
    loss = _step(cell, x, h)[0].sum()
    blocks()
    loss.backward()
    # THEN after the loss's own gradient come the gates', the state's and the bias's
    assert blocks()[:4] == [4, 4 * STATE, STATE, 4 * WIDTH * 4]


def test_backward_of_a_gru_step_makes_the_gates_twice(blocks):
    cell = nn.GRUCell(INPUTS, WIDTH).cuda()
    x, h = torch.ones(BATCH, INPUTS).cuda(), torch.ones(BATCH, WIDTH).cuda()
    loss = _step(cell, x, h)[0].sum()
    blocks()
    loss.backward()
    bias = 3 * WIDTH * 4
    assert blocks()[:6] == [4, 3 * STATE, 3 * STATE, STATE, bias, bias]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_values_and_gradients_are_the_hosts(gpu, kind, bias):
    # GIVEN two steps of the same cell on the host and on the card
    with torch.no_grad():
        cell = kind(5, 7, bias=bias)
        x, h = torch.randn(3, 5), torch.randn(3, 7)
    found = []
    for device in ("cpu", "cuda"):
        cell.to(device).zero_grad()
        mine = [t.to(device).detach().requires_grad_() for t in (x, h)]
        first = _step(cell, *mine)
        second = cell(mine[0], first if len(first) > 1 else first[0])
        out = second if isinstance(second, tuple) else (second,)
        sum((each.square() * each.sigmoid()).sum() for each in out).backward()
        grads = [t.grad for t in (*mine, *cell.parameters())]
        found.append([t.detach().cpu().clone() for t in (*out, *grads)])
    # THEN they agree
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_wrong_shapes_raise_as_on_the_host(gpu, kind):
    cell = kind(5, 7)
    texts = []
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError) as raised:
            _step(cell.to(device), torch.ones(3, 4, device=device), torch.ones(3, 7, device=device))
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_host_tensors_keep_the_hosts_way(gpu, blocks, kind):
    out = _step(kind(5, 7), torch.ones(3, 5), torch.ones(3, 7))
    assert all(not each.is_cuda for each in out)
    assert blocks() == []
