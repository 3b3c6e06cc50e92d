"""Ordinary cells, written as they should be: no rule may find a mistake in any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.advice import RULES, find_rule  # noqa: E402 - needs torch for what it is tested with
from gpumem_magic.values.advice import Kind  # noqa: E402

NO_TRADES = [rule.name for rule in RULES if rule.kind is not Kind.TRADE]
"""Without what is worth its price only when memory is short: it may be told when somebody asks."""

CELLS = sorted((Path(__file__).parent / "quiet").glob("*.py"))


@pytest.mark.parametrize("path", CELLS, ids=lambda path: path.stem)
def test_no_mistake_is_found_where_there_is_none(path, notebook):
    *earlier, cell = path.read_text().split("# --- cell\n")
    with notebook() as one:
        for setup in earlier:
            result, text = one.run(setup)
            assert result.success, text
        asked = one.assess(cell, *NO_TRADES)
        assert asked.report.error is None
        found = [*asked.advice, *asked.useless]
        assert [(advice.rule, advice.line, advice.problem) for advice in found] == []
        report = one.measure(cell)
        assert report.error is None
        assert [(advice.rule, advice.line, advice.problem) for advice in report.advice] == []


TOO_SMALL = {
    "forward_only_backward_in_next_cell": "50MiB",
    "neural_style": "45MiB",
}
"""Cards that some of them do not fit."""


@pytest.mark.parametrize(("name", "card"), TOO_SMALL.items())
def test_no_mistake_is_found_on_a_card_that_is_too_small(name, card, notebook):
    *earlier, cell = (CELLS[0].parent / f"{name}.py").read_text().split("# --- cell\n")
    with notebook(card) as one:
        for setup in earlier:
            one.run(setup)
        one.run(f"%%gpucheck -o _predicted\n{cell}")
        report = one.shell.user_ns["_predicted"]
    assert report.oom is not None
    wrong = [each for each in report.advice if find_rule(each.rule).kind is Kind.MISTAKE]
    assert [(each.rule, each.line, each.problem) for each in wrong] == []


def test_there_are_enough_of_them():
    assert len(CELLS) >= 100
