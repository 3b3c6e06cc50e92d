"""What selecting and drawing takes, as torch's CUDA build does on a device that computes nothing
(compute capability 7.5, 40 multiprocessors)."""

from __future__ import annotations

import pytest
import torch


def _asked(blocks, run):
    blocks()
    kept = run()
    return blocks(), kept


def test_the_largest_of_short_slices_need_nothing(blocks):
    x = torch.ones(8192, 64, device="cuda")
    assert _asked(blocks, lambda: x.topk(2))[0] == [65536, 131072]


def test_the_largest_of_long_slices_are_counted_by_several_blocks(blocks):
    x = torch.ones(512, 4096, device="cuda")
    taken = [2048, 4096, 4096, 262144, 524288, 2048, 2048]
    scans = [1279, -1279, 1279, -1279]
    found = _asked(blocks, lambda: x.topk(16))[0]
    assert [abs(size) for size in found[:2]] == [32768, 65536]
    assert len(found) == 2 + 2 * len(taken) + len(scans)
    assert found[2:9] == taken
    assert sorted(found[-7:]) == sorted(-size for size in taken)


def test_a_permutation_sorts_random_keys(blocks):
    found = _asked(blocks, lambda: torch.randperm(1000, device="cuda"))[0]
    assert found == [8000, 8, -8, 8000, 4000, 4000, 1, -1, -4000, -4000, -8000]


@pytest.mark.parametrize(
    ("elements", "asked", "taken"),
    [
        (torch.int64, (), [800000, 853759, -853759, 800000, 8, 2047]),
        (torch.int64, ("counts",), [800000, 853759, -853759, 800000, 8, 800000, 3071]),
        (
            torch.float32,
            ("inverse", "counts"),
            [
                *(400000, 800000, 800000, 1245695, -1245695, -800000, 800000, 800000),
                *(1279, -1279, -800000, 400000, 8, 800000, 3071),
            ],
        ),
    ],
)
def test_distinct_elements_are_sorted_and_counted(blocks, elements, asked, taken):
    x = torch.arange(100000, device="cuda", dtype=elements)
    flags = {f"return_{name}": True for name in asked}
    assert _asked(blocks, lambda: torch.unique(x, **flags))[0][: len(taken)] == taken


def test_distinct_slices_are_found_by_their_numbers(blocks):
    x = torch.ones(2, 500000, device="cuda", dtype=torch.int64)
    found = _asked(blocks, lambda: torch.unique(x, dim=1))[0]
    assert found[:5] == [8000000, 4000000, 4001279, -4001279, 13823]
    x = torch.ones(20, 300, device="cuda").t()
    found = _asked(blocks, lambda: torch.unique_consecutive(x, dim=1, return_inverse=True))[0]
    assert found[:3] == [160, 160, 160]
    x = torch.zeros(100000, 2, device="cuda")
    found = _asked(blocks, lambda: torch.unique(x, dim=0, return_inverse=True))[0]
    assert {255, 2815, 3839} <= set(found)  # where runs begin, their numbers, and what is selected


def test_the_median_without_nans_sorts(blocks):
    x = torch.ones(1000, 5000, device="cuda")
    found = _asked(blocks, lambda: torch.nanmedian(x))[0]
    assert found[:5] == [4, 20000000, 40000000, 40000000, 61827327]


def test_membership_among_many_sorts_all(blocks):
    x = torch.ones(300, 500, device="cuda")
    many = torch.ones(500, device="cuda")
    found = _asked(blocks, lambda: torch.isin(x, many, assume_unique=True))[0]
    both = [602000, 602000, 1204000, 1204000, 1870335, -1870335, -1204000, 150500]
    assert found[:9] == [150000, *both]
    found = _asked(blocks, lambda: torch.isin(x, many))[0]
    assert found[:5] == [150000, 600000, 1200000, 1200000, 1864191]
    assert max(found) == 1870335


def test_products_of_whole_numbers_take_a_workspace(blocks):
    x = torch.ones(64, 64, device="cuda", dtype=torch.int8)
    assert 8519680 in _asked(blocks, lambda: torch._int_mm(x, x))[0]


def test_membership_among_few_compares_all_pairs(blocks):
    x = torch.zeros(1000, dtype=torch.int64, device="cuda")
    few = torch.zeros(3, dtype=torch.int64, device="cuda")
    assert _asked(blocks, lambda: torch.isin(x, few))[0] == [1000, 3000, 1000, -1000, -3000]
    assert _asked(blocks, lambda: torch.isin(x, 3))[0] == [1000]


def test_drawing_without_replacement_has_a_number_for_each_weight(blocks):
    x = torch.ones(64, 100, device="cuda")
    looked_at = [4, 1, 4, 1, 1, -1, -4, -1, -4, 256, 64, 1, -64, -256, 1, -1]
    drawn = [512, *looked_at, 25600, -25600, -1, -1]
    assert _asked(blocks, lambda: torch.multinomial(x, 1))[0] == drawn


def test_sums_of_flags_are_made_of_whole_numbers(blocks):
    flags = torch.ones(100, 100, device="cuda") > 0
    assert _asked(blocks, flags.sum)[0][:2] == [8, 80000]


def test_a_running_sum_of_one_dimension_is_cubs(blocks):
    x = torch.ones(1 << 20, device="cuda")
    assert _asked(blocks, lambda: x.cumsum(0))[0] == [4194304, 5375, -5375]
    two = torch.ones(8, 100, device="cuda")
    assert _asked(blocks, lambda: two.cumsum(1))[0] == [3200]


def test_comparing_two_tensors_has_a_flag_for_each_element(blocks):
    x, y = (torch.ones(1000, device="cuda") for _ in range(2))
    assert _asked(blocks, lambda: torch.equal(x, y))[0][:2] == [1000, 1]
    assert _asked(blocks, lambda: torch.equal(x, y[1:]))[0] == []


def test_the_number_of_unlike_coordinates_has_no_gradient(blocks):
    for p, pairs in ((0.0, 0), (1.0, 1)):
        x = torch.ones(100, 10, device="cuda", requires_grad=True)
        total = torch.cdist(x, x.detach() + 1, p=p).sum()
        assert _asked(blocks, total.backward)[0].count(100 * 100 * 10 * 4) == pairs


def test_infinities_are_looked_for_among_absolute_values(blocks):
    x = torch.ones(1000, device="cuda")
    assert _asked(blocks, lambda: torch.isinf(x))[0] == [4000, 1000, -4000]
    whole = x.long()
    assert _asked(blocks, lambda: torch.isinf(whole))[0] == [1000]


def test_distances_within_a_tensor_gather_each_rows_gradients(blocks):
    x = torch.randn(100, 10, device="cuda", requires_grad=True)
    total = torch.pdist(x).sum()
    assert 99 * 4000 in _asked(blocks, total.backward)[0]
