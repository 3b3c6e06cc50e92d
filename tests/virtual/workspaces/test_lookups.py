"""Embeddings, writes by index and sorts: what they take besides their results, as torch's CUDA
build does on a device that computes nothing (compute capability 7.5)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpumem_magic.virtual.workspaces.selection import (
    radix_sort_storage,
    scan_by_key_storage,
    scan_storage,
    unique_storage,
)

T4 = (7, 5)


@pytest.mark.parametrize(
    ("n", "key", "value", "bits", "size"),
    [
        (500, 8, 8, None, 1),
        (3073, 8, 8, None, 68607),
        (16384, 8, 8, None, 285183),
        (20000, 8, 8, 14, 332799),
        (50000, 8, 8, 10, 823295),
        (4096, 4, 4, None, 1),
        (100000, 4, 8, None, 1245695),
        (100000, 8, 8, None, 1653759),
        (240000, 4, 8, None, 2976767),
    ],
)
def test_storage_of_radix_sorts(n, key, value, bits, size):
    assert radix_sort_storage(n, key, value, T4, bits) == size


@pytest.mark.parametrize(
    ("storage", "n", "width", "size"),
    [
        (unique_storage, 4096, 8, 1279),
        (unique_storage, 16384, 8, 2047),
        (unique_storage, 1000000, 8, 51199),
        (unique_storage, 1000000, 4, 23807),
        (scan_by_key_storage, 1000, 8, 1279),
        (scan_by_key_storage, 10000000, 8, 105215),
        (scan_by_key_storage, 10000000, 4, 87807),
        (scan_storage, 1000, 4, 1023),
        (scan_storage, 10000000, 4, 42495),
        (scan_storage, 100000, 8, 2815),
    ],
)
def test_storage_of_selections_and_scans(storage, n, width, size):
    assert storage(n, width) == size


@pytest.mark.parametrize(
    ("shape", "dim", "buffers"),
    [
        ((100, 1000), -1, [8000]),
        ((100, 1000), 0, [800]),
        ((100000,), -1, [800000, 1245695]),
        ((3, 32000), -1, [768000, 768000, 384000, 1196543, 38399]),
        ((64, 32000), -1, [16384000, 16384000, 8192000, 25330175, 748031]),
        ((1000, 5000), -1, [40000000, 60000255]),
        ((3, 1200000), -1, [9600000, 14845951, 14845951, 14845951]),
    ],
)
def test_a_sort_takes_a_row_of_indices_or_cubs_storage(blocks, shape, dim, buffers):
    x = torch.ones(shape, device="cuda")
    blocks()
    kept = torch.sort(x, dim)
    assert [size for size in blocks() if size > 0][2:] == buffers
    assert kept.values.shape == shape


def test_an_embeddings_gradient_is_summed_in_sorted_order(blocks):
    layer = nn.Embedding(1000, 64, device="cuda")
    y = layer(torch.zeros(3073, dtype=torch.long, device="cuda"))
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    taken = [size for size in blocks() if size > 2048]
    assert taken == [24584, 24584, 24584, 68607, 256000, 24584, 24584, 8000, 8000, 10456, 334592]


def test_few_indices_are_not_sorted(blocks):
    layer = nn.Embedding(1000, 64, device="cuda")
    y = layer(torch.zeros(3072, dtype=torch.long, device="cuda"))
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    assert [size for size in blocks() if size > 0] == [256000]


@pytest.mark.parametrize("pick", ["x[i]", "x.gather(0, i[:, None].expand(-1, 64))", "x.take(i)"])
def test_a_gradient_of_zeros_is_filled_in_place(blocks, pick):
    x = torch.ones(1000, 64, device="cuda", requires_grad=True)
    i = torch.zeros(500, dtype=torch.long, device="cuda")
    y = eval(pick, {"x": x, "i": i})
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    assert blocks().count(256000) == 1
    assert x.grad.sum().item() == y.numel()


def test_zeros_written_over_a_gradient_spare_the_rest(gpu):
    x = torch.ones(1000, 64, device="cuda", requires_grad=True)
    y = x.index_put((torch.zeros(5, dtype=torch.long, device="cuda"),), x.new_zeros(64))
    (y * y).mean().backward()
    assert x.grad[0].sum().item() == 0
    assert x.grad[1].sum().item() > 0


def test_indices_that_are_broadcast_in_unlike_ways_are_copied(blocks):
    x = torch.ones(16, 64, 8, device="cuda")
    row = torch.arange(16, device="cuda")[:, None]
    column = torch.zeros(16, 20, dtype=torch.int64, device="cuda")
    first = torch.arange(20, device="cuda")[None]
    blocks()
    # GIVEN rows that go with every column: only they are not dense
    y = x[row, column]
    index, out = 16 * 20 * 8, 16 * 20 * 8 * 4
    assert blocks() == [index, out, -index]
    # AND both broadcast
    z = x[row, first]
    assert blocks() == [index, index, out, -index, -index]
    # AND written to
    x[row, first] = y
    assert [size for size in blocks() if abs(size) == index] == [index, index, -index, -index]
    # THEN indices of the same strides are read as they are, and so is a lone one
    w = x[row[:, 0], column[:, 0].clone()], x[row]
    assert index not in blocks()
    del y, z, w


def test_indices_on_the_host_are_copied(blocks):
    x, indices = torch.ones(100, 10, device="cuda"), torch.arange(50)
    blocks()
    x[indices]
    assert blocks() == [400, 2000, -400, -2000]
    x[indices.cuda()]
    assert 2000 in blocks()
    x[indices] = torch.ones(10, device="cuda")
    assert blocks()[-3:-1] == [400, -400]
