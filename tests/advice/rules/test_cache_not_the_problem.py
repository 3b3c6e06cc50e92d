"""A call in a function that a loop calls is a call in a loop."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import torch
from torch import nn
model = nn.Linear(1024, 1024).cuda()
data = torch.randn(4, 512, 1024, device="cuda")"""
CELL = """\
def predict(batch):
    with torch.no_grad():
        found = model(batch).sum().item()
    torch.cuda.empty_cache()  # keep memory low
    return found

total = 0
{call}"""


@pytest.mark.parametrize(
    ("call", "fires"),
    [
        ("for batch in data:\n    total += predict(batch)", True),
        ("total = predict(data[0])", False),
    ],
)
def test_a_function_that_a_loop_calls_is_part_of_it(notebook, call, fires):
    with notebook() as one:
        one.run(SETUP)
        cell = CELL.format(call=call)
        found = one.assess(cell, "cache-not-the-problem").advice
        assert [a.line for a in found] == [4] * fires
        for advice in found:
            assert advice.source == cell.replace(
                "    torch.cuda.empty_cache()  # keep memory low\n", ""
            )
            assert not one.assess(advice.source).report.error
