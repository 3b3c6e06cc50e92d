"""Dry runs beside a kernel's loop: they end between its other work, or are cancelled."""

from __future__ import annotations

import time
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from gpumem_magic.dryrun import Scenario
from gpumem_magic.panel.dry_runs import DryRuns
from gpumem_magic.predict import predicting
from gpumem_magic.values.recording import Cell


class Loop:
    """What a kernel's event loop offers, turned by hand."""

    def __init__(self):
        self.waiting = deque()

    def call_later(self, seconds, call):
        self.waiting.append(call)

    def turn(self):
        self.waiting.popleft()()
        time.sleep(0.02)


@pytest.fixture
def panel():
    """The dry runs of a panel on a made-up kernel; what was said, and whether any are under way."""
    loop, said, changes = Loop(), [], []
    shell = SimpleNamespace(kernel=SimpleNamespace(io_loop=loop))
    host = SimpleNamespace(
        shell=shell, enter=lambda: None, leave=lambda: None, prediction=nullcontext
    )
    dry_runs = DryRuns(host, said.append, lambda what, act: act)
    dry_runs.changed.append(changes.append)
    return SimpleNamespace(loop=loop, said=said, changes=changes, dry_runs=dry_runs)


def asked(code):
    return predicting(Scenario(Cell(code, "<cell>"), {}, "T4"))


def turn_to_the_end(panel):
    while panel.dry_runs.running:
        panel.loop.turn()


def test_a_flow_comes_to_its_end_between_other_work(panel):
    found = []
    panel.dry_runs.carry_out("Predicting", asked("x = 1"), found.append)
    assert panel.changes == [True]
    turn_to_the_end(panel)
    assert found[0].error is None
    assert panel.changes == [True, False]


def test_cancel_kills_what_runs(panel):
    found = []
    panel.dry_runs.carry_out("Predicting", asked("while True:\n    pass"), found.append)
    for _ in range(5):
        panel.loop.turn()
    (child,) = [each.child for each in panel.dry_runs._runner._running]
    panel.dry_runs.cancel()
    assert panel.said == ["Cancelled."]
    assert panel.changes == [True, False]
    assert not child.scratch.exists()
    panel.loop.turn()
    assert not panel.loop.waiting
    assert found == []


def test_errors_of_a_flow_end_it(panel):
    def flow():
        yield from asked("x = 1")
        raise ValueError("no")

    panel.dry_runs.carry_out("Predicting", flow(), print)
    with pytest.raises(ValueError, match="no"):
        turn_to_the_end(panel)
    assert not panel.dry_runs.running
