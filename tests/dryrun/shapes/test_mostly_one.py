"""Masks that are true in a few places, wherever these are: they select so many and no more."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic import predict

LABELS = "labels = torch.randint(0, 1000, (128,), device='cuda')\nrows = torch.arange(128)\n"
SCORES = "scores = torch.randn(128, 1000, device='cuda')\n"
ZEROS = "mask = torch.zeros(128, 1000, device='cuda')\n"
ONES = "mask = torch.ones(128, 1000, device='cuda')\n"


def selected(source):
    """Rows that a dry run takes `found` to have."""
    report = predict(f"{LABELS}{SCORES}{source}\nprint(len(found))", {"torch": torch}, gpu="T4")
    assert report.error is None, report.error
    return int(report.output)


@pytest.mark.parametrize(
    "source",
    [
        f"{ZEROS}mask[rows, labels] = 1\nfound = scores[mask == 1]",
        f"{ZEROS}mask.scatter_(1, labels[:, None], 1)\nfound = scores.masked_select(mask.bool())",
        f"{ZEROS}found = mask.scatter(1, labels[:, None], 1.0).nonzero()",
        f"{ONES}mask[rows, labels] = 0\nfound = scores[~mask.bool()]",
        "found = scores[torch.nn.functional.one_hot(labels, 1000).bool()]",
    ],
)
def test_one_of_each_row(source):
    assert selected(source) == 128


@pytest.mark.parametrize(
    "source",
    [
        f"{ZEROS}mask[rows, labels] = 1\nfound = scores[mask != 1]",
        f"{ZEROS}mask[rows, labels] = 1\nmask.add_(scores)\nfound = scores[mask == 1]",
        f"{ZEROS}mask[scores > 0] = 1\nfound = scores[mask == 1]",
        "found = scores[scores > 0]",
    ],
)
def test_else_all_may_be_found(source):
    assert selected(source) == 128_000


@pytest.mark.parametrize("write", ["mask[labels[:5]] = 1", "mask.index_fill_(0, labels[:5], 1)"])
def test_whole_rows_that_are_written_count_whole(write):
    assert selected(f"{ZEROS}{write}\nfound = mask.nonzero()") == 5000


def test_what_is_written_later_is_added():
    twice = "mask[rows, labels] = 1\nmask[rows[:9], labels[:9]] = 1\n"
    assert selected(f"{ZEROS}{twice}found = scores[mask > 0]") == 137
