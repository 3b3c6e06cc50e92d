"""What is shown and held by a name, or shown and small, is no stale output."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = 'import torch\nx = torch.ones(1 << 20, device="cuda")'


@pytest.mark.parametrize("cell", ["y = x * 2\ny", "y = x * 2\ny[:5]", "x.mean()", "(x * 2).cos();"])
def test_silent_where_the_history_alone_keeps_nothing_large(cell, notebook):
    with notebook() as one:
        one.run(SETUP)
        report = one.measure(cell)
    assert [a for a in report.advice if a.rule == "stale-output"] == []


def test_the_tensor_that_only_the_history_keeps_is_told_with_its_bytes(notebook):
    with notebook() as one:
        one.run(SETUP)
        report = one.measure("x * 2")
    (advice,) = [a for a in report.advice if a.rule == "stale-output"]
    assert (advice.size, advice.saving) == (4 << 20, 4 << 20)
    assert advice.source.endswith("print(x * 2)")
