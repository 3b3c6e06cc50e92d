"""Recurrent layers: one kernel as in cuDNN, values and gradients as on the host."""

from __future__ import annotations

import copy

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


def test_order_of_blocks_of_a_training_step(blocks):
    """As torch 2.11's CUDA code asked for them, on a stub of cuDNN."""
    layer = nn.LSTM(96, 160, batch_first=True).cuda()
    x = torch.randn(24, 40, 96, device="cuda")
    blocks()
    out, _ = layer(x)
    state, steps, flat, unit = 15360, 368640, 660480, 614400
    forward = [state, state, steps, unit, state, state, 4 * unit, 6 * unit, -4 * unit, -steps]
    assert blocks() == forward
    out.backward(out)
    backward = [state, state, steps, steps, state, state, 4 * unit]
    weights = [steps, flat, 4 * unit]
    assert [size for size in blocks() if size > 0] == backward + weights


def test_weights_become_parts_of_one_buffer(blocks):
    layer = nn.GRU(96, 160).cuda()
    sizes = [4 * 480 * 96, 4 * 480 * 160, 4 * 480, 4 * 480]
    assert blocks() == [*sizes, sum(sizes), *(-size for size in sizes)]
    assert len({weight.untyped_storage().data_ptr() for weight in layer.parameters()}) == 1
    layer(torch.ones(2, 3, 96, device="cuda"))
    assert sum(sizes) not in blocks()


def test_weights_that_lie_apart_are_gathered_for_each_call(blocks):
    layer = copy.deepcopy(nn.GRU(96, 160).cuda())
    blocks()
    layer(torch.ones(2, 3, 96, device="cuda"))
    assert sum(parameter.nbytes for parameter in layer.parameters()) in blocks()


def test_biases_take_their_place_where_there_are_none(blocks):
    layer = nn.LSTM(96, 160, proj_size=64, bias=False).cuda()
    weights = 4 * (640 * 96 + 640 * 64 + 64 * 160)
    assert weights + 2 * 4 * 640 in blocks()
    x = torch.randn(4, 3, 96, device="cuda")
    layer(x)[0].sum().backward()
    assert layer.weight_hr_l0.grad.untyped_storage().nbytes() == layer.weight_hr_l0.nbytes


def test_dropout_keeps_one_state_of_random_numbers(blocks):
    layers = [nn.GRU(8, 16, 2, dropout=0.5).cuda() for _ in range(2)]
    state = 48 * 40 * 1024  # one generator for each thread that a T4 can hold
    x = torch.ones(3, 2, 8, device="cuda")
    for layer, times in zip(layers, (1, 0), strict=True):
        blocks()
        layer(x)
        assert blocks().count(state) == times


@pytest.mark.parametrize("asked", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_float16_whatever_is_asked(blocks, asked):
    layer = nn.LSTM(96, 160).cuda()
    x = torch.randn(5, 3, 96, device="cuda", requires_grad=True)
    blocks()
    with torch.autocast("cuda", asked):
        out, _ = layer(x)
    assert out.dtype is torch.float16
    assert 2 * sum(parameter.numel() for parameter in layer.parameters()) in blocks()
    out.sum().backward()
    assert x.grad.dtype is layer.weight_hh_l0.grad.dtype is torch.float32
    assert torch.isfinite(layer.weight_hh_l0.grad).all()


def test_packing_copies_one_piece_for_each_length(blocks):
    x = torch.ones(3, 5, 16, device="cuda")
    blocks()
    nn.utils.rnn.pack_padded_sequence(x, [5, 5, 2], batch_first=True)
    whole, long = 64 * 3 * 2, 64 * 2 * 3
    assert sorted(blocks()) == sorted([64 * 12, whole, long, -whole, -long, -64 * 12])


def test_cudnn_can_be_switched_off(blocks):
    layer = nn.LSTM(96, 160).cuda()
    with torch.backends.cudnn.flags(enabled=False):
        blocks()
        layer(torch.randn(5, 3, 96, device="cuda"))
        assert 5 * 3 * 160 * 4 * 6 not in blocks()


def test_without_gradients_the_reserve_goes_at_once(allocated, blocks):
    layer, x = nn.LSTM(64, 64, 2).cuda(), torch.randn(10, 8, 64, device="cuda")
    reserve = 6 * 2 * 10 * 8 * 64 * 4
    before = allocated()
    for context in (torch.no_grad, torch.inference_mode):
        for train in (True, False):
            layer.train(train)
            blocks()
            with context():
                out, state = layer(x)
            assert blocks().count(-reserve) == train
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
