"""Recurrent layers: one kernel as in cuDNN, values and gradients as on the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn

LAYERS = {
    "lstm": lambda: nn.LSTM(8, 16, 2, bidirectional=True),
    "projecting": lambda: nn.LSTM(8, 16, proj_size=4),
    "batch first": lambda: nn.LSTM(8, 16, batch_first=True),
    "gru": lambda: nn.GRU(8, 16, 2),
    "rnn": lambda: nn.RNN(8, 16, bias=False),
    "relu": lambda: nn.RNN(8, 16, nonlinearity="relu"),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_values_and_gradients_are_those_of_the_host(gpu, make, packed):
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        layer, x = make().to(device), torch.randn(3, 3, 8).to(device).requires_grad_()
        inputs = x
        if packed:
            inputs = nn.utils.rnn.pack_padded_sequence(x, [3, 2, 1], layer.batch_first)
        out, state = layer(inputs)
        out = out.data if packed else out
        hidden = state[0] if isinstance(state, tuple) else state
        (out.square().sum() + hidden.sum()).backward()
        weights = [parameter.grad for parameter in layer.parameters()]
        results.append([out, hidden, x.grad, *weights])
        assert all(tensor.device.type == device for tensor in results[-1])
    for host, device in zip(*results, strict=True):
        assert torch.allclose(host, device.cpu(), atol=1e-5)


def test_what_is_kept_for_backward(allocated):
    layer, x = nn.LSTM(64, 64, 2).cuda(), torch.randn(10, 8, 64, device="cuda")
    before = allocated()
    out, state = layer(x)
    steps = 10 * 8 * 64 * 4
    results = steps + 2 * 2 * 8 * 64 * 4
    zeros = 2 * 2 * 8 * 64 * 4  # the states that it began with, of which nobody gave any
    assert allocated() - before == results + zeros + 6 * 2 * steps
    out.sum().backward()
    del out, state
    weights = sum(parameter.nbytes for parameter in layer.parameters())
    assert allocated() - before == weights  # the gradients, in one block


def test_without_gradients_nothing_is_kept(allocated):
    layer, x = nn.LSTM(64, 64, 2).cuda(), torch.randn(10, 8, 64, device="cuda")
    before = allocated()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out, state = layer(x)
        assert allocated() - before == out.nbytes + 2 * state[0].nbytes
        del out, state


def test_dropout_between_layers_is_the_same_in_backward(gpu):
    layer, x = nn.GRU(8, 16, 2, dropout=0.5).cuda(), torch.randn(3, 2, 8, device="cuda")
    gradients = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        layer.zero_grad()
        layer(x)[0].sum().backward()
        gradients.append(layer.weight_ih_l1.grad.clone())
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_half_precision(gpu):
    layer = nn.LSTM(8, 16).cuda().half()
    out, _ = layer(torch.ones(3, 2, 8, device="cuda", dtype=torch.float16))
    out.sum().backward()
    assert out.dtype is layer.weight_ih_l0.grad.dtype is torch.float16


def test_refusals_are_those_of_cuda(gpu):
    x = torch.ones(3, 2, 8, device="cuda")
    with pytest.raises(
        RuntimeError, match="Input and parameter tensors are not at the same device"
    ):
        nn.LSTM(8, 16)(x)
    layer = nn.LSTM(8, 16).cuda().eval()
    with pytest.raises(RuntimeError, match="only be called in training mode"):
        layer(x)[0].sum().backward()
