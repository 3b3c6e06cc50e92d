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


@pytest.mark.parametrize("change", ["to", "clone", "half().contiguous"])
def test_a_constant_may_change_its_layout(change):
    source = (
        "image = torch.zeros(2, 64, 64, 64, device='cuda')\n"
        f"image = image.{change}(memory_format=torch.channels_last)\n"
        "assert image.stride()[1] == 1\nfound = image.nonzero()"
    )
    assert selected(source) == 0


@pytest.mark.parametrize("write", ["mask[labels[:5]] = 1", "mask.index_fill_(0, labels[:5], 1)"])
def test_whole_rows_that_are_written_count_whole(write):
    assert selected(f"{ZEROS}{write}\nfound = mask.nonzero()") == 5000


def test_what_is_written_later_is_added():
    twice = "mask[rows, labels] = 1\nmask[rows[:9], labels[:9]] = 1\n"
    assert selected(f"{ZEROS}{twice}found = scores[mask > 0]") == 137


SAMPLED = f"""{ZEROS}other = torch.zeros_like(mask)
mask.view(-1)[torch.randperm(128_000, device='cuda')[:64]] = 1
other.view(-1)[torch.randperm(128_000, device='cuda')[:192]] = 1
mask, other = mask.bool(), other.bool()
"""


@pytest.mark.parametrize(
    ("joined", "most"),
    [
        ("mask | other", 256),
        ("torch.logical_or(mask, other)", 256),
        ("torch.cat([mask, other])", 256),
        ("mask & other", 64),
        ("mask & (scores > 0)", 64),
        ("mask | (scores > 0)", 128_000),
        ("mask | ~other", 128_000),
        ("torch.cat([mask, scores > 0])", 256_000),
    ],
)
def test_masks_put_together(joined, most):
    assert selected(f"{SAMPLED}found = torch.where({joined})[0]") == most


CHOSEN = """
tokens = torch.randn(4096, 8, device='cuda')
chosen = tokens.topk(2)[1]
taken = 0
"""


@pytest.mark.parametrize(
    ("loop", "most"),
    [
        ("for e in range(8):\n    taken += len(torch.where(chosen == e)[0])", 8192),
        ("for e in range(8):\n    taken += len(tokens[(chosen == e).any(-1)])", 8192),
        (
            "for e in range(8):\n    mask = (chosen == e).any(dim=-1)\n    if mask.any():\n"
            "        taken += len(tokens[mask])",
            8192,
        ),
        ("for e in range(8):\n    taken += len(tokens[chosen[:, 0] == e])", 4096),
        (
            "masks = torch.nn.functional.one_hot(chosen, 8).permute(2, 1, 0)\n"
            "for e in (masks.sum((-1, -2)) > 0).nonzero():\n"
            "    taken += len(torch.where(masks[e[0]])[1])",
            8192,
        ),
        ("taken = sum(torch.bincount(chosen.view(-1), minlength=8).tolist())", 8192),
        (
            "counts = chosen.new_zeros(4096, 8).scatter_(1, chosen, 1).sum(0)\n"
            "for count in counts.cpu().numpy():\n    taken += count",
            8192,
        ),
    ],
)
def test_experts_share_the_tokens(loop, most):
    assert selected(f"{CHOSEN}{loop}\nfound = range(taken)") == most


@pytest.mark.parametrize(
    ("loop", "most"),
    [
        ("for e in range(8):\n    taken += len((classes == e).nonzero())", 8 * 4096),
        ("taken += len((chosen.view(-1) == 0).nonzero())\n" * 8, 8 * 8192),
        (
            "taken += len((chosen == 0).nonzero())\ntaken += len((chosen == 1).nonzero())",
            2 * 8192,
        ),
    ],
)
def test_what_no_choice_among_experts_is_may_be_all_of_one_class(loop, most):
    classes = "classes = (tokens.sum(1) > 0).long()\n"
    assert selected(f"{CHOSEN}{classes}{loop}\nfound = range(taken)") == most


def test_an_end_token_is_not_taken_to_be_there():
    code = "last = tokens.argmax(-1)\nif (last == 2).any():\n    taken = 9\n"
    assert selected(f"{CHOSEN}{code}found = range(taken)") == 0
