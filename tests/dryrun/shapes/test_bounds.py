"""What is known of small tensors although their values are not, and where loops end by it."""

from __future__ import annotations

import pytest

from gpumem_magic import predict

UNKNOWN = """
import torch
big = torch.randn(1024, 1024, device="cuda") @ torch.randn(1024, 1024, device="cuda")
unknown = big[0, :4] > 0
some = torch.ones(4, dtype=torch.bool, device="cuda")
none = torch.zeros(4, dtype=torch.bool, device="cuda")
half = torch.tensor([True, True, False, False], device="cuda")
"""


def predicted(code):
    report = predict(UNKNOWN + code, {}, gpu="T4")
    assert report.error is None
    return report


def needs_values(report):
    return any("values that a dry run does not know" in note for note in report.notes)


@pytest.mark.parametrize(
    "true",
    [
        "(unknown | some).all()",
        "~(unknown & none).any()",
        "(unknown | half)[:2].all()",
        "((unknown | half).long().max() == 1)",
        "(torch.ones(4, dtype=torch.long, device='cuda') & ~(unknown | some)).max() == 0",
        "torch.logical_or(unknown, some).all()",
        "(unknown.long().sum() <= 4)",
        "(unknown.int() >= 0).all()",
        "(unknown == unknown).all()",
        "(1 - unknown.int() <= 1).all()",
        "torch.isfinite(big.sum())",
        "not (torch.isnan(big.sum()) or torch.isinf(big.mean()))",
    ],
)
def test_what_follows_for_every_value_is_known(true):
    report = predicted(f"assert {true}")
    assert not needs_values(report)


@pytest.mark.parametrize(
    "open_question",
    [
        "(unknown & some).all()",
        "(unknown | none).any()",
        "(unknown | half).all()",
        "(unknown | ~(big[1, :4] > 0)).all()",
        "unknown.long().sum() == 4",
        "(unknown.int() + (big[1, :4] > 0).int() + -1).all()",
        "(unknown == (big[1, :4] > 0)).all()",
        "(unknown.int() >= (big[1, :4] > 0).int()).all()",
        "(unknown.int() < (big[1, :4] > 0).int()).any()",
        "(unknown != (big[1, :4] > 0)).any()",
        "(unknown != half).long().sum() == 2",
        "(1 - unknown.int() + (big[1, :4] > 0).int()).max() == 1",
        "((big[1, :4] > 0).int() - unknown.int()).max() == 0",
        "(unknown.long() * 3).max() == 2",
        "(unknown.fill_(True) | none).all()",
        "big[0, 0] == -torch.inf",
        "big[0, 0] != big[0, 1]",
        "torch.isinf(big[0]).any()",
    ],
)
def test_what_does_not_follow_is_not_known(open_question):
    assert needs_values(predicted(f"bool({open_question})"))


def test_an_end_token_lets_a_loop_go_on_to_its_greatest_length():
    code = """
ids = torch.zeros(4, 8, dtype=torch.long, device="cuda")
unfinished = torch.ones(4, dtype=torch.long, device="cuda")
while not unfinished.max() == 0:
    token = big[:4].argmax(-1)
    ids = torch.cat([ids, token[:, None]], dim=-1)
    done = torch.full((4,), ids.shape[1] >= 64, device="cuda", dtype=torch.bool)
    unfinished = unfinished & ~(done | torch.isin(ids[:, -1], torch.tensor([2], device="cuda")))
assert ids.shape == (4, 64)
"""
    assert needs_values(predicted(code))


def test_a_length_and_what_it_leaves_over_go_together():
    code = """
longest = (1 - unknown.long()).sum()
assert big[:, : 8 - longest].numel() + big[:, 8 - longest : 8].numel() == 8 * 1024
assert big[:, 8 - longest : 8].shape == big[:, :longest].shape
"""
    assert needs_values(predicted(code))


def test_what_is_picked_is_one_of_what_there_is():
    code = """
labels = torch.arange(90, device="cuda").expand(1000, 90).reshape(-1)
found = labels[torch.where(big[:1000, :90].flatten() > 0)[0]]
assert found.numel() == 90_000 and len(torch.unique(found)) == 90
"""
    assert needs_values(predicted(code))


def test_a_place_that_is_found_is_one_of_those_there_are():
    code = """
places = torch.isin(big[:5, :1].argmax(-1), torch.tensor([2], device="cuda")).nonzero()
assert places[0].item() == 4
"""
    assert needs_values(predicted(code))


@pytest.mark.parametrize(("places", "most"), [("torch.arange(90)", 31), ("torch.arange(89)", 89)])
def test_what_is_written_over_all_that_was_there_is_all_there_is(places, most):
    code = f"""
graphs = torch.arange(32, device="cuda").repeat(9)[big[0, :288].argsort()][:90]
places = {places}.cuda()
pooled = torch.arange(90, device="cuda").scatter_(0, places, graphs[:len(places)])
assert (pooled.max().item() == 31) == {most == 31}
"""
    assert needs_values(predicted(code))


@pytest.mark.parametrize(
    "places",
    [
        "big[:, :4].argmax(1)",
        "big[:, :4].argmin(dim=-1, keepdim=True)",
        "big[:2, :2].argmax().expand(9)",
        "big[:64, :4].argmax(1).int() + 1",
    ],
)
def test_there_are_no_more_different_places_than_one_looks_at(places):
    predicted(f"assert len(torch.unique({places})) == 4")
