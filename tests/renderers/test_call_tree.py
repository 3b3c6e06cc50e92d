"""What a report says of modules: a tree in full, and first what had most of the peak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem_magic.renderers import mimebundle
from gpumem_magic.renderers.call_tree import by_module, most_at_peak
from gpumem_magic.renderers.terminal import plain
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import CallNode
from tests.renderers.conftest import make_calling

TREE = (
    ("line 1  net = Net().cuda() > net", 0, 60),
    ("up > parameter", 1, 40),
    ("down > parameter", 1, 20),
    ("line 3  trainer.train()", 0, 305),
    ("net", 1, 225),
    ("h[0..3]", 2, 205),
    ("mlp", 3, 110),
    ("attn > x = torch.cat(rows)", 3, 95),
    ("head", 2, 20),
    ("(backward)", 1, 80),
)


TREE_OF_LINE = (
    CallNode("line 3  trainer.train()", 0, 160 * MIB, 0, 0),
    CallNode("head", 1, 160 * MIB, 0, 0),
)


def report_of(lines=2):
    """A report of 365 MiB at the peak, nearly all of it in one line."""
    report = make_calling()
    nodes = tuple(CallNode(name, depth, size * MIB, size * MIB, 0) for name, depth, size in TREE)
    return replace(report, lines=report.lines[:lines], call_tree=nodes)


def test_the_largest_parts_are_taken_apart_as_far_as_they_have_most():
    rows = [[plain(cell) for cell in row.cells] for row in most_at_peak(report_of(), 3).rows]
    assert rows == [
        ["3  net.h[0..3].mlp", "30 %", "110.0 MiB", "nothing kept"],
        ["3  net.h[0..3].attn > x = torch.cat(rows)", "26 %", "95.0 MiB", "nothing kept"],
        ["3  (backward)", "22 %", "80.0 MiB", "nothing kept"],
    ]


def test_two_lines_for_a_whole_training_run_are_no_answer():
    first, _, _ = mimebundle(report_of())["text/html"].partition("<summary")
    assert "net.h[0..3].mlp" in first
    assert "The lines that matter most" not in first


def test_a_cell_of_more_lines_shows_these_first():
    first, _, _ = mimebundle(report_of(3))["text/html"].partition("<summary")
    assert "The lines that matter most" in first
    assert "net.h[0..3].mlp" not in first


def test_without_modules_there_is_nothing_to_take_apart():
    assert most_at_peak(replace(report_of(), call_tree=()), 3) is None
    alone = (CallNode("line 3  trainer.train()", 0, 300 * MIB, 0, 0),)
    assert most_at_peak(replace(report_of(), call_tree=alone), 3) is None


def test_what_earlier_cells_made_is_named_so_and_is_no_reason_alone():
    before = (
        CallNode("(before the cell)", 0, 200 * MIB, 0, 0),
        CallNode("net", 1, 200 * MIB, 0, 0),
    )
    assert most_at_peak(replace(report_of(), call_tree=before), 3) is None
    rows = most_at_peak(replace(report_of(), call_tree=(*TREE_OF_LINE, *before)), 3).rows
    assert plain(rows[0].cells[0]) == "(before the cell) > net"


def test_a_tree_that_takes_no_line_apart_is_left_to_the_table_by_line():
    before = CallNode("(before the cell)", 0, 200 * MIB, 0, 0), CallNode("net", 1, 200 * MIB, 0, 0)
    line = CallNode("line 3  y = net(x)", 0, 160 * MIB, 0, 0)
    assert by_module(replace(report_of(), call_tree=(line, *before))) == ()
    (table,) = by_module(replace(report_of(), call_tree=(*TREE_OF_LINE, *before)))
    assert [plain(row.cells[0]) for row in table.rows] == [TREE_OF_LINE[0].name, before[0].name]


def test_a_cell_is_taken_apart_however_much_was_there_before():
    report = report_of()
    before = CallNode("(before the cell)", 0, 9000 * MIB, 0, 0)
    full = replace(report.peak, allocated=9365 * MIB)
    found = most_at_peak(replace(report, peak=full, call_tree=(before, *report.call_tree)), 3)
    names = [plain(row.cells[0]) for row in found.rows]
    assert names[1:] == ["3  net.h[0..3].mlp", "3  net.h[0..3].attn > x = torch.cat(rows)"]


CODE = "return 0.5 * input * (1.0 + torch.tanh(math.pi * (input + 0.044 * input)))"
CALLED = "In[6]:3  yield model(batch.to('cuda')).argmax(-1)"


@pytest.mark.parametrize(
    ("line", "way", "named"),
    [
        ("t.train()", f"h > act > {CODE}", "8  h.act"),
        ("list(answers)", f"{CALLED} > model > layers[0..3]", "8  model.layers[0..3]"),
    ],
)
def test_of_a_long_way_the_modules_are_named(line, way, named):
    """A line of their code, cut in its middle, tells nothing."""
    tree = (CallNode(f"line 8  {line}", 0, 90 * MIB, 0, 0), CallNode(way, 1, 90 * MIB, 0, 0))
    (row,) = most_at_peak(replace(report_of(), call_tree=tree), 3).rows
    assert plain(row.cells[0]) == named
