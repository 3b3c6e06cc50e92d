"""Report and advice cost as much per line in a long cell as in a short one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from gpumem_magic.advice import work
from gpumem_magic.pipeline import analyse
from gpumem_magic.sources.objects.allocation_sites import sites_of
from gpumem_magic.trace.attribution import find_nesting
from gpumem_magic.values.names import ModuleFacts, Names
from gpumem_magic.values.recording import Category, Cell, Frame
from tests.counting import lines_run

KIB = 1 << 10
CELL = "<cell>"

CELLS = {
    "a name a line": "x{n} = make()",
    "one name": "x = make(x)",
    "each from the one before": "x{n} = make(x{m})",
    "losses gathered": "losses.append(make(x{n}))",
    "sums": "total = total + make(x)",
    "a function a line": "def f{n}(x): return make(x)",
    "training": "loss = make(x); loss.backward(); opt.step()",
    "steps": "loss = make(x); loss.backward(); opt.step(); opt.zero_grad()",
    "old models": "model = make(x)",
    "beside a list": "x{n} = make(x)",
    "calls of one function": "x{n} = f(x)",
    "calls of another cell": "x{n} = g(x)",
    "below %%time": "x{n} = make(x)",
}
HEADS = {
    "beside a list": "parts = [make(n) for n in range(9)]",
    "calls of one function": "def f(x): return make(x)",
    "below %%time": "%%time",
    "steps": "opt = torch.optim.SGD(model.parameters())",
}
INNER = {
    "calls of one function": (Frame(CELL, 1, "f"),),
    "calls of another cell": (Frame("<other>", 0, "g"),),
}


def recorded(script, name, lines):
    """Each line makes a block with a graph, and frees that of the line before the last."""
    head = [HEADS[name]] if name in HEADS else []
    body = (CELLS[name].format(n=n, m=n - 1) for n in range(1, lines + 1))
    other = Cell("def g(x):\n    return make(x)", "<other>", 3)
    s = script("\n".join([*head, *body]), {"<other>": other})
    s.initial("weight", 4 * KIB)
    s.label("weight", Category.PARAMETER, "model.weight")
    for n in range(1, lines + 1):
        line = n + len(head)
        inner = tuple(replace(frame, line=frame.line or n) for frame in INNER.get(name, ()))
        if name == "below %%time":
            line, inner = 1, (Frame("<timed exec>", n, "<module>"),)
        s.alloc(str(n), 4 * KIB, line, inner)
        s.label(str(n), name=f"x{n}", graph=True)
        if n > 2:
            s.free(str(n - 2), line)
    model = ModuleFacts("Net", True, 4 * KIB, 4 * KIB, 0, 0, {"float32": 4 * KIB})
    return replace(s.recording(), names=Names(modules={"model": model}))


def looks(recording, monkeypatch):
    """What all rules together look at."""
    counted = []
    spend = work.Work.spend
    monkeypatch.setattr(
        work.Work, "spend", lambda self, looks: (counted.append(looks), spend(self, looks))[1]
    )
    analyse(recording, everything=True)
    monkeypatch.undo()
    return sum(counted)


def steps(recording):
    """How many lines of Python run for the report of a recording, and what is kept for the next."""

    def report():
        analysis = analyse(recording, everything=True)
        analysis.report.text()
        sites_of(recording, {})

    return lines_run(report)[0]


@pytest.mark.parametrize("name", CELLS)
def test_rules_look_at_each_line_as_often_in_a_long_cell(script, name, monkeypatch):
    short, long = (looks(recorded(script, name, lines), monkeypatch) for lines in (100, 400))
    assert long <= 6 * short


@pytest.mark.parametrize("name", CELLS)
def test_a_report_takes_as_many_steps_a_line_in_a_long_cell(script, name):
    short, long = (steps(recorded(script, name, lines)) for lines in (200, 400))
    assert long <= 2.1 * short


def test_who_called_whom_is_kept_by_pairs_not_by_lines_times_events(script):
    recording = recorded(script, "calls of one function", 50)
    nesting = find_nesting(recording.stacks, CELL)
    row = recording.events.stack.astype(np.int64)
    assert len(nesting.row) == len(recording.stacks)
    assert len(nesting.runs(row, row).event) == len(recording.events)


def test_no_rule_may_look_at_more_than_a_bounded_number_however_long_the_cell(script):
    counted = work.Work()
    counted.begin(10**9)
    with pytest.raises(work.TooMuchWorkError):
        counted.spend(work.MOST + 1)


def test_rules_that_would_look_at_too_much_are_left_out_by_name_in_one_note(script, monkeypatch):
    recording = recorded(script, "each from the one before", 50)
    assert analyse(recording, everything=True).report.notes == ()
    monkeypatch.setattr(work, "_PER_NODE", 0)
    monkeypatch.setattr(work, "_AT_LEAST", 0)
    (note,) = analyse(recording, everything=True).report.notes
    assert note.startswith("This cell is too large for these rules, which were left out: ")
    assert "stale-variable" in note
