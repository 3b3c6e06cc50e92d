"""Buffers of large reductions, as torch 2.11's own CUDA code asks for them on a T4."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.virtual.workspaces.reductions import Operand, Processors, reduction_buffers

T4 = Processors.of(40, (7, 5))
FULL, HALF = torch.float32, torch.float16

# reduction, shape, dimensions, element type -> bytes of the partial results, of the semaphores
RECORDED = [
    (torch.sum, (1 << 20,), (0,), FULL, [320, 4]),
    (torch.sum, (3, 5_000_000), (0, 1), FULL, [460, 4]),
    (torch.sum, (1, 4_194_304), (1,), torch.int64, [640, 4]),
    (torch.sum, (1024, 4096), (0,), HALF, [20_971_520, 128]),
    (torch.mean, (33, 77, 1001), (0, 1, 2), HALF, [320, 4]),
    (torch.amax, (16, 64, 112, 112), (0, 1, 2, 3), FULL, [392, 4]),
    (torch.amax, (1 << 20,), (0,), HALF, [160, 4]),
    (torch.amax, (4096, 1024), (0,), HALF, [10_485_760, 32]),
    (torch.std, (1 << 20,), (0,), FULL, [1280, 4]),
    (torch.std, (4096, 1024), (0,), HALF, [83_886_080, 32]),
    (torch.linalg.vector_norm, (4_194_304, 1), (0, 1), FULL, [320, 4]),
]


@pytest.mark.parametrize(("reduce", "shape", "dims", "dtype", "buffers"), RECORDED)
def test_large_reductions_combine_partial_results(blocks, reduce, shape, dims, dtype, buffers):
    x = torch.ones(shape, dtype=dtype, device="cuda")
    blocks()
    result = reduce(x, dim=dims)
    taken = blocks()
    assert taken[0] == result.nbytes
    assert sorted(taken[1:]) == sorted([*buffers, *(-size for size in buffers)])


@pytest.mark.parametrize(
    ("shape", "dims"), [((1000,), [0]), ((64, 100), [1]), ((10, 10, 10), [0, 1, 2]), ((0, 3), [0])]
)
def test_small_reductions_need_no_buffer(shape, dims):
    assert reduction_buffers(Operand(shape, torch.empty(shape).stride()), tuple(dims), 4, T4) == ()


def test_a_single_value_needs_no_buffer():
    assert reduction_buffers(Operand((), ()), (), 4, T4) == ()


@pytest.mark.parametrize(
    ("capability", "threads"),
    [((7, 5), 1024), ((8, 6), 1536), ((8, 9), 1536), ((12, 0), 1536), ((9, 0), 2048)],
)
def test_threads_of_a_multiprocessor(capability, threads):
    assert Processors.of(10, capability) == Processors(10, threads)


def test_more_processors_share_the_work_of_one_output():
    shape = (1 << 24,)
    small = reduction_buffers(Operand(shape, (1,)), (0,), 4, T4)
    large = reduction_buffers(Operand(shape, (1,)), (0,), 4, Processors.of(132, (9, 0)))
    assert small[0] < large[0]


@pytest.mark.parametrize("operator", ["max", "min"])
def test_along_a_dimension_a_value_goes_with_its_place(blocks, operator):
    x = torch.ones(2, 1 << 20, device="cuda")
    blocks()
    lone = getattr(x, f"a{operator}")(1)
    plain = [size for size in blocks() if size > 0]
    pair = getattr(x, operator)(1)
    both = [size for size in blocks() if size > 0]
    # THEN partial results are 16 bytes, of the value alone 4
    assert plain[0] == both[0] == 8
    assert both[1] == 16
    assert both[2] == 4 * plain[1] > 0
    del lone, pair


@pytest.mark.parametrize(("itemsize", "parts"), [(2, 1), (4, 1), (8, 2)])
def test_places_are_counted_in_bytes_of_elements_not_of_partial_results(itemsize, parts):
    card = Processors.of(132, (9, 0))
    rows = 2**23  # of 32 elements: 2 GiB from 8 bytes on
    sums, best = (
        reduction_buffers(Operand((rows, 32), (32, 1), 0, itemsize), (0,), accumulator, card)
        for accumulator in (4, 16)
    )
    assert best[0] == 4 * sums[0]
    whole = reduction_buffers(Operand((rows // parts, 32), (32, 1), 0, 1), (0,), 4, card)
    assert sums == whole
