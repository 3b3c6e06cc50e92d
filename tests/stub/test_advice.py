"""What rules claim that a change saves, against torch's real allocator on the stub device."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from tests.benches import benchmark_module

pytestmark = pytest.mark.skipif(
    not (os.environ.get("GPUMEM_STUB") and os.environ.get("GPUMEM_STUB_PYTHON")),
    reason="needs the stub device: set GPUMEM_STUB (folder of run.sh) and GPUMEM_STUB_PYTHON",
)
with benchmark_module("claims") as claims:
    CASES = claims.CASES
    REAL = next(way for way in claims.WAYS if way.name == "real")


@pytest.fixture(scope="module")
def runners():
    with claims.Runners() as runners:
        yield runners


def roomy(card):
    """A card like this one that the cell does not fill: sizes stand for cards of capability 8.0."""
    return "24GiB" if card.endswith("iB") else card


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{case.number}" for case in CASES])
def test_a_change_saves_on_the_real_allocator_what_was_claimed(case, runners):
    outcome = claims.compared(case, roomy(case.example.card), runners, REAL)
    assert outcome.error == ""
    assert outcome.holds, outcome
