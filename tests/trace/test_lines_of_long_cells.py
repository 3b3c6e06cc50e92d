"""Report and advice cost as much per line in a long cell as in a short one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from gpumem_magic.advice import work
from gpumem_magic.pipeline import analyse
from gpumem_magic.values.names import ModuleFacts, Names
from gpumem_magic.values.recording import Category

KIB = 1 << 10

CELLS = {
    "a name a line": "x{n} = make()",
    "one name": "x = make(x)",
    "each from the one before": "x{n} = make(x{m})",
    "losses gathered": "losses.append(make(x{n}))",
    "sums": "total = total + make(x)",
    "a function a line": "def f{n}(x): return make(x)",
    "training": "loss = make(x); loss.backward(); opt.step()",
    "old models": "model = make(x)",
}


def recorded(script, template, lines):
    """Each line makes a block with a graph, and frees that of the line before the last."""
    s = script("\n".join(template.format(n=n, m=n - 1) for n in range(1, lines + 1)))
    s.initial("weight", 4 * KIB)
    s.label("weight", Category.PARAMETER, "model.weight")
    for n in range(1, lines + 1):
        s.alloc(str(n), 4 * KIB, n)
        s.label(str(n), name=f"x{n}", graph=True)
        if n > 2:
            s.free(str(n - 2), n)
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


def seconds(does: Callable[[], object]) -> float:
    taken = []
    for _ in range(3):
        started = time.process_time()
        does()
        taken.append(time.process_time() - started)
    return min(taken)


@pytest.mark.parametrize("template", CELLS.values(), ids=CELLS)
def test_rules_look_at_each_line_as_often_in_a_long_cell(script, template, monkeypatch):
    short, long = (looks(recorded(script, template, lines), monkeypatch) for lines in (100, 400))
    assert long <= 6 * short


@pytest.mark.parametrize("template", CELLS.values(), ids=CELLS)
def test_four_times_the_lines_take_at_most_eight_times_the_time(script, template):
    short, long = (recorded(script, template, lines) for lines in (100, 400))
    assert seconds(lambda: analyse(long, everything=True)) <= 8 * seconds(
        lambda: analyse(short, everything=True)
    )


def test_rules_that_would_look_at_too_much_are_left_out_by_name_in_one_note(script, monkeypatch):
    recording = recorded(script, CELLS["each from the one before"], 50)
    assert analyse(recording, everything=True).report.notes == ()
    monkeypatch.setattr(work, "_PER_NODE", 0)
    monkeypatch.setattr(work, "_AT_LEAST", 0)
    (note,) = analyse(recording, everything=True).report.notes
    assert note.startswith("This cell is too large for these rules, which were left out: ")
    assert "stale-variable" in note
