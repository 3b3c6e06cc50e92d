"""Means by index, and logarithms of sums of exponentials."""

from __future__ import annotations

import pytest
import torch

ROWS, WRITTEN, WIDTH = 256, 100, 32
SOURCE, OUT = ROWS * WIDTH * 4, WRITTEN * WIDTH * 4
ONE_EACH = WRITTEN * WIDTH  # bytes of a mask


@pytest.fixture
def tensors(gpu):
    index = torch.randint(0, WRITTEN, (ROWS,)).cuda()
    return torch.zeros(WRITTEN, WIDTH).cuda(), index, torch.ones(ROWS, WIDTH).cuda()


def test_a_mean_by_scatter_counts(blocks, tensors):
    out, index, source = tensors
    index = index[:, None].expand(-1, WIDTH)
    blocks()
    out.scatter_reduce_(0, index, source, "mean")
    assert blocks() == [SOURCE, OUT, ONE_EACH, -ONE_EACH, -OUT, -SOURCE]
    made = out.scatter_reduce(0, index, source, "mean")
    assert blocks()[:2] == [OUT, SOURCE]
    made.scatter_reduce_(0, index, source, "amax")
    assert blocks() == []


def test_a_mean_by_index_counts(blocks, tensors):
    out, index, source = tensors
    blocks()
    out.index_reduce_(0, index, source, "mean")
    assert blocks() == [OUT, SOURCE, -SOURCE, ONE_EACH, -ONE_EACH, -OUT]
    out.index_reduce_(0, index, source, "prod")
    assert blocks() == []


def test_a_write_by_mask_counts_the_marked_places(blocks):
    x, mask = torch.zeros(64, 64, device="cuda"), torch.ones(64, 64, device="cuda").bool()
    source = torch.ones(4096, device="cuda")
    blocks()
    y = x.masked_scatter(mask, source)
    copy, counts, storage = blocks()[:3]
    assert (copy, counts) == (x.nbytes, 4096 * 8)
    assert 0 < storage < 4096
    assert blocks() == []
    torch.testing.assert_close(y.cpu(), torch.ones(64, 64))


def test_a_mask_for_each_row_is_written_out(blocks):
    x, source = torch.zeros(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")
    mask = torch.ones(64, device="cuda") > 0
    blocks()
    x.masked_scatter(mask, source)
    assert blocks()[:3] == [x.nbytes, 4096 * 8, 4096]
    x[0].masked_scatter(mask.expand(64, 64), source)
    assert blocks()[:3] == [x.nbytes, 4096 * 8, 4096]


@pytest.mark.parametrize("how", ["amax", "amin"])
def test_counts_of_equal_values_are_beside_what_is_equal(blocks, tensors, how):
    out, index, source = tensors
    index, source = index[:, None].expand(-1, WIDTH), source.requires_grad_()
    made = out.requires_grad_().scatter_reduce(0, index, source, how)
    gradient = torch.ones_like(made)
    blocks()
    torch.autograd.grad(made, (out, source), gradient)
    taken = [size for size in blocks() if size > 0]
    # equal to the result as numbers, their count, a gradient shared, and the result's own
    assert taken.count(OUT) == 4


@pytest.mark.parametrize("keepdim", [True, False])
def test_the_logarithm_of_a_sum_of_exponentials_is_made_last(blocks, keepdim):
    x = torch.zeros(8, 64, device="cuda")
    blocks()
    y = x.logsumexp(1, keepdim=keepdim)
    highest, all_of_them = 8 * 4, 8 * 64 * 4
    assert blocks() == [
        *(highest, highest, 8, -8, -highest),
        *(all_of_them, highest, -all_of_them, -highest),
    ]
    torch.testing.assert_close(y.cpu().flatten(), torch.full((8,), 64.0).log())


PLACES, OF_ALL = ROWS * 8, ROWS * WIDTH * 8
SORT = [PLACES, PLACES, -PLACES, PLACES, PLACES, PLACES]


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def expanded(index):
    return index[:, None].expand(-1, WIDTH)


@pytest.mark.parametrize(
    ("write", "before"),
    [
        (lambda out, index, source: out.index_add_(0, index, source), [SOURCE]),
        (lambda out, index, source: out.index_copy_(0, index, source), []),
        (lambda out, index, source: out.index_put_((index,), source), []),
        (lambda out, index, source: out.scatter_(0, expanded(index), source), []),
        (lambda out, index, source: out.scatter_add_(0, expanded(index), source), []),
        (lambda out, index, source: out.scatter_reduce_(0, expanded(index), source, "sum"), []),
        (
            lambda out, index, source: torch.ops.aten._unsafe_index_put(out, [index], source, True),
            [OUT],
        ),
    ],
)
@pytest.mark.usefixtures("deterministic")
def test_writes_that_come_out_the_same_each_time_sort_their_places(blocks, tensors, write, before):
    out, index, source = tensors
    blocks()
    write(out, index, source)
    assert blocks()[: len(before) + len(SORT)] == before + SORT


@pytest.mark.usefixtures("deterministic")
def test_an_index_of_all_places_counts_the_other_dimensions_as_well(blocks, tensors):
    out, _, source = tensors
    index = torch.zeros(ROWS, WIDTH, dtype=torch.long, device="cuda")
    blocks()
    out.scatter_add_(0, index, source)
    assert blocks()[:10] == [
        *(WIDTH * 8, OF_ALL, OF_ALL, -OF_ALL),
        *(OF_ALL, OF_ALL, -OF_ALL, -OF_ALL),
        *(OF_ALL, OF_ALL),
    ]


@pytest.mark.usefixtures("deterministic")
def test_a_number_is_written_without_a_sort(blocks, tensors):
    out, index, _ = tensors
    blocks()
    out.scatter_(0, index[:, None], 1.0)
    out.scatter_(0, index[:, None], out[:1].expand(ROWS, WIDTH)[:, :1], reduce="multiply")
    assert blocks() == []
