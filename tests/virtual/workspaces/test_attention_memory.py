"""Sizes of fused attention's own memory, as torch 2.11's CUDA code asked for them."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.virtual.workspaces import attention_memory
from gpumem_magic.virtual.workspaces.attention_memory import (
    Shape,
    efficient_accumulator,
    efficient_workspace,
    flash_buffers,
    flash_splits,
)

T4, A10G, A100 = (7, 5), (8, 6), (8, 0)

# batch x heads, queries, keys, head, bytes of an element; card -> floats for each batch and head
WORKSPACES = [
    ((6, 64, 64, 64, 4), T4, 4100),
    ((6, 70, 50, 16, 4), T4, 8200),
    ((1, 257, 513, 64, 4), T4, 20500),
    ((2, 130, 130, 160, 4), T4, 36900),
    ((2, 130, 130, 160, 4), A100, 49176),
    ((2, 100, 100, 128, 4), A100, 16392),
    ((2, 100, 100, 128, 4), A10G, 16400),
    ((6, 128, 128, 32, 2), T4, 8200),
    ((2, 200, 130, 80, 2), T4, 32784),
    ((2, 200, 130, 80, 2), A100, 32776),
    ((2, 64, 64, 96, 2), A10G, 16392),
    ((2, 100, 100, 128, 2), A10G, 49168),
    ((2, 100, 100, 128, 2), A100, 16388),
    ((2, 130, 130, 160, 2), T4, 147480),
    ((1, 64, 64, 256, 2), A100, 65552),
]


@pytest.mark.parametrize(("shape", "capability", "floats"), WORKSPACES)
def test_workspaces_of_memory_efficient_backward(shape, capability, floats):
    assert efficient_workspace(Shape(*shape), capability) == 4 * shape[0] * floats


@pytest.mark.parametrize(
    ("shape", "buffers"),
    [
        ((6, 64, 64, 64, 2), (3072, 196608)),
        ((6, 70, 50, 16, 2), (3072, 98304)),
        ((2, 200, 130, 80, 2), (2048, 196608)),
        ((1, 64, 64, 256, 2), (512, 131072)),
    ],
)
def test_buffers_of_flash_backward(shape, buffers):
    assert flash_buffers(Shape(*shape)) == buffers


@pytest.mark.parametrize(
    ("shape", "buffers"),
    [
        ((2, 200, 130, 80, 2), (3200, 307200)),
        ((1, 257, 513, 64, 2), (3084, 197376)),
        ((6, 64, 64, 64, 2), (0, 0)),
        ((400, 64, 4096, 64, 2), (0, 0)),  # there is enough to do without
    ],
)
def test_splits_of_flash_forward_on_108_processors(shape, buffers):
    assert flash_splits(Shape(*shape), 108) == buffers


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 64, 64, 256, 2), 65536), ((2, 64, 64, 128, 2), 0), ((1, 64, 64, 256, 4), 0)],
)
def test_large_heads_in_half_precision_need_an_accumulator(shape, size):
    assert efficient_accumulator(Shape(*shape)) == size


@pytest.mark.parametrize(
    ("dtype", "backward", "expected"),
    [
        (
            torch.float32,
            attention_memory.efficient_backward_of_sequences,
            [935936, 14624, 14624, -14624, -935936, 2099200, -14624, -2099200],
        ),
        (
            torch.bfloat16,
            attention_memory.flash_backward_of_sequences,
            [31008, 1984512, -1984512, -31008],
        ),
    ],
)
def test_sequences_of_any_length(gpu, blocks, dtype, backward, expected):
    """GIVEN four sequences of 457 places and 8 heads of 64, the longest of 256 WHEN their gradients
    are taken THEN the kernels take what they were seen to on a card."""
    sequences = torch.empty(457, 8, 64, dtype=dtype, device="meta")
    starts = torch.empty(5, dtype=torch.int32, device="meta")
    one, ends = sequences[None], (starts, starts, 256, 256)
    if dtype is torch.float32:
        args = (one, one, one, one, None, one, *ends)
    else:
        args = (*[sequences] * 5, None, *ends)
    blocks()
    backward(gpu.tracker._scratch, args, {})
    assert blocks() == expected
