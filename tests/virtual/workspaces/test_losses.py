"""What losses take before they are reduced."""

from __future__ import annotations

import torch
from torch.nn import functional

INPUT = 64 * 32 * 4


def test_a_sum_takes_one_value_per_element_first(blocks):
    x, y = torch.ones(64, 32, device="cuda"), torch.zeros(64, 32, device="cuda")
    blocks()
    loss = functional.huber_loss(x, y, reduction="sum")
    assert blocks() == [4, INPUT, -INPUT]
    loss = functional.huber_loss(x, y, reduction="none")
    assert blocks() == [INPUT, -4]
    del loss


def test_many_values_are_reduced_by_many_blocks(blocks):
    x, y = torch.ones(2048, 2048, device="cuda"), torch.zeros(2048, 2048, device="cuda")
    blocks()
    functional.huber_loss(x, y)
    _, *taken, _ = blocks()
    assert taken == [x.nbytes, 320, 4, -4, -320, -x.nbytes]


def test_log_sigmoid_keeps_no_buffer(blocks):
    x = torch.ones(64, 32, device="cuda", requires_grad=True)
    blocks()
    y = functional.logsigmoid(x)
    assert blocks() == [INPUT]
    y.sum().backward()
    assert x.grad.shape == x.shape


def test_the_gradient_of_a_soft_margin_is_made_beside_three_factors(blocks):
    x, y = torch.ones(64, 32, device="cuda", requires_grad=True), torch.ones(64, 32, device="cuda")
    loss = functional.soft_margin_loss(x, y)
    blocks()
    loss.backward()
    assert [size for size in blocks() if abs(size) == INPUT] == [
        *(INPUT, INPUT, INPUT, -INPUT, -INPUT),
        *(INPUT, -INPUT),
    ]
    torch.testing.assert_close(x.grad.cpu() * x.numel(), -torch.ones(64, 32).sigmoid().neg().add(1))


def test_long_sequences_gather_their_blanks_beside_the_gradient(gpu, blocks):
    def taken(steps):
        x = torch.zeros(steps, 2, 8, device="cuda", requires_grad=True)
        targets, lengths = torch.ones(2, 3, dtype=torch.int64, device="cuda"), torch.tensor([3, 3])
        loss = functional.ctc_loss(x, targets, torch.tensor([steps] * 2), lengths)
        blocks()
        loss.backward()
        return [size for size in blocks() if size > 64]

    few, many = 200, 300
    states, gradient = 2 * 7 * 4, 2 * 8 * 4  # bytes of a step: two labels, a sign at each side
    assert taken(few) == [few * states, few * gradient]
    summed, rows = many * 2 * 4 * 4, many * 2 * 4
    assert taken(many) == [
        *(many * states, many * gradient, summed),
        *(rows, rows, rows // 4, summed, rows),
    ]
