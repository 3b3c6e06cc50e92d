"""A cell of more events than are kept: the older half is summed up, levels and peak stay exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpumem_magic.pipeline import analyse
from gpumem_magic.sources.summing import outlast
from gpumem_magic.values.recording import Action, Cell
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.source import VirtualSource

MIB = 1 << 20

CELL = """
kept = torch.ones(MIB, device="cuda")
big = [torch.ones(MIB, device="cuda") for _ in range(8)]
del big
old = None
for i in range(200):
    x = torch.ones(1000 + i, device="cuda")
    if i % 50 == 0:
        kept = torch.cat([kept, x])
"""


def analysed(code, most):
    source = VirtualSource(lookup("T4"), max_events=most)
    names = {"torch": torch, "MIB": MIB}
    source.enter()
    try:
        names["old"] = torch.ones(3 * MIB, device="cuda")
        error = None
        source.start(lambda: names)
        try:
            exec(compile(code, "<cell>", "exec"), names)
        except RuntimeError as raised:
            error = raised
        (recording,) = source.stop(Cell(code, "<cell>", 7), {}, error)
        names.clear()
        return analyse(recording)
    finally:
        source.leave()
        source.close()


@pytest.mark.parametrize("most", [20, 64, 300])
def test_levels_peak_and_kinds_are_those_of_all_events(most):
    whole, short = analysed(CELL, None), analysed(CELL, most)
    assert len(whole.recording.events) > 400
    assert len(short.recording.events) <= 1.5 * most + 10  # segments are all kept
    for level in ("before", "peak", "after"):
        assert getattr(short.report, level) == getattr(whole.report, level)
    assert short.report.at_end == whole.report.at_end
    assert short.report.unknown == whole.report.unknown
    (note,) = short.report.notes
    assert note.startswith("The first ")
    assert whole.report.notes == ()


def test_what_is_kept_of_the_first_events_stays_with_its_line():
    whole, short = analysed(CELL, None), analysed(CELL, 64)
    ends = [
        [(b.name, b.size, b.line) for b in one.report.blocks if b.name in ("kept", "old")]
        for one in (whole, short)
    ]
    assert ends[0] == ends[1] != []


def test_what_is_kept_is_known_by_what_it_was_made_for():
    made = []
    for most in (None, 64):
        lives = analysed(CELL, most).trace.lives
        made.append([lives.results[i] for i in lives.made[lives.at_end & (lives.birth >= 0)]])
    assert made[0] == made[1] != []


def test_a_failure_stays_where_it_was():
    code = CELL + "torch.ones(1 << 40, device='cuda')\n"
    whole, short = analysed(code, None), analysed(code, 64)
    assert short.report.oom.line == whole.report.oom.line == 10
    assert short.report.oom.held == whole.report.oom.held


def test_events_that_are_no_lives_stay():
    action = np.array([Action.ALLOC, Action.FREE, Action.FREE, Action.SEGMENT_ALLOC, Action.ALLOC])
    address = np.array([512, 512, 1024, 2048, 512])
    assert outlast(action.astype(np.int8), address).tolist() == [False, False, True, True, True]
