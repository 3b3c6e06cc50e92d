"""What rules claim that a change saves, against torch's real allocator on the stub device."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from gpumem_magic.advice import RULES
from gpumem_magic.assess import Question, assess
from gpumem_magic.devices import choose_source
from gpumem_magic.dryrun import Scenario
from gpumem_magic.sources import ACTIVE, Active
from gpumem_magic.values.advice import Saves
from gpumem_magic.values.recording import Cell
from tests.benches import benchmark_module

pytestmark = pytest.mark.skipif(
    not (os.environ.get("GPUMEM_STUB") and os.environ.get("GPUMEM_STUB_PYTHON")),
    reason="needs the stub device: set GPUMEM_STUB (folder of run.sh) and GPUMEM_STUB_PYTHON",
)

AGREES = 0.05
OF_THE_NOTEBOOK = ("stale-output", "second-model")  # a script has no output history, and runs once
RAISING = ("backward-under-no-grad", "graph-used-twice")
WHEN_SHORT = ("separate-models", "large-pass")  # and the cards here have room
CASES = [
    (rule, i, example)
    for rule in RULES
    for i, example in enumerate(rule.examples)
    if example.rewritten
    and not example.needs
    and rule.name not in (*OF_THE_NOTEBOOK, *RAISING, *WHEN_SHORT)
]


@pytest.fixture(scope="module")
def ways():
    """The benchmark's ways to run a cell, as a module."""
    with benchmark_module("fidelity_ways") as module:
        yield module


@pytest.fixture(scope="module")
def runners(ways):
    with ways.Runners() as runners:
        yield runners


def roomy(card):
    """A card like this one that the cell does not fill: sizes stand for cards of capability 8.0."""
    return "24GiB" if card.endswith("iB") else card


def claimed(rule, example):
    """What the rule's change saves on a virtual card, and of what."""
    names = {"__name__": "__main__"}
    source = choose_source(roomy(example.card))
    source.enter()
    active = ACTIVE.set(Active(source, recording=False))
    try:
        exec(compile(example.setup, "<setup>", "exec"), names)
        cell = Cell(example.before, "<cell>")
        found = assess(Question(Scenario(cell, names), str))
    finally:
        ACTIVE.reset(active)
        source.leave()
        names.clear()
        source.close()
    everything = (*found.advice, *found.useless)
    return next(a for a in everything if a.rule == rule.name and a.source == example.after)


def on_real_allocator(ways, runners, example, cell):
    source = f"import torch\n{example.setup}\ntorch.cuda.reset_peak_memory_stats()\n{cell}\n"
    outcome = runners.run(ways.REAL, SimpleNamespace(source=source, card=roomy(example.card)))
    assert outcome.error is None
    return outcome


@pytest.mark.parametrize(
    ("rule", "example"), [case[::2] for case in CASES], ids=[f"{r.name}-{i}" for r, i, _ in CASES]
)
def test_a_change_saves_on_the_real_allocator_what_was_claimed(rule, example, ways, runners):
    advice = claimed(rule, example)
    before = on_real_allocator(ways, runners, example, example.before)
    after = on_real_allocator(ways, runners, example, example.after)
    size = {Saves.PEAK: "allocated", Saves.AFTER: "end", Saves.RESERVED: "reserved"}[advice.saves]
    was, now = getattr(before, size), getattr(after, size)
    slack = AGREES * max(abs(was - now), 0.2 * was if not advice.saving else 0)
    assert abs((was - now) - (advice.saving or 0)) <= slack
