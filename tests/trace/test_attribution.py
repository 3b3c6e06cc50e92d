from __future__ import annotations

from gpumem_magic.trace import build_trace
from gpumem_magic.values.findings import Called
from gpumem_magic.values.recording import Cell, Frame, Phase

SOURCE = "def f():\n    return a()\n\nx = f()\ny = g()\n"


def lines(recording):
    return {line.number: line for line in build_trace(recording).lines}


def test_a_line_owns_what_it_allocates_and_frees(script):
    s = script(SOURCE)
    s.initial("old", 4096)
    s.alloc("a", 512, 4)
    s.alloc("b", 1024, 4)
    s.free("old", 5)
    s.free("a", 5)
    found = lines(s.recording())
    four, five = found[4], found[5]
    assert (four.source, four.allocated, four.freed, four.net) == ("x = f()", 1536, 0, 1536)
    assert (five.source, five.allocated, five.freed, five.net) == ("y = g()", 0, 4608, -4608)
    assert (four.peak, five.peak) == (5632, 5632)
    assert (four.growth, five.growth) == (1536, -4608)


INSIDE = (Frame("/lib/a.py", 9, "a"), Frame("<cell>", 2, "f"))


def test_the_innermost_frame_in_the_cell_owns_the_event_and_its_caller_counts_it_too(script):
    s = script(SOURCE)
    s.alloc("a", 512, 4, INSIDE)
    s.free("a", 4)
    s.alloc("b", 1024, 4, INSIDE)
    s.free("b", 4, INSIDE)
    found = lines(s.recording())
    assert [(n, line.source) for n, line in found.items()] == [(2, "return a()"), (4, "x = f()")]
    two, four = found[2], found[4]
    assert (two.allocated, two.freed, two.called) == (1536, 1024, None)
    assert (four.allocated, four.freed, four.called) == (0, 512, Called(1536, 1024, 1024))
    assert (four.total, four.total_net, four.highest) == (1536, 0, 1024)


def test_a_line_that_only_calls_is_told_with_how_often_it_ran(script):
    s = script(SOURCE)
    for number in range(3):
        s.alloc(f"a{number}", 512, 4, INSIDE)
        s.alloc(f"b{number}", 256, 5)
    four = lines(s.recording())[4]
    assert (four.allocated, four.net, four.peak, four.count) == (0, 0, None, 3)
    assert (four.called, four.highest) == (Called(1536, 0, 2048), 2048)


def test_events_without_a_frame_in_the_cell_are_line_zero(script):
    s = script(SOURCE)
    s.alloc("a", 512)
    s.alloc("b", 1024, inner=(Frame("/lib/thread.py", 9, "run"),))
    s.alloc("c", 2048, 5)
    found = lines(s.recording())
    assert [*found] == [0, 5]
    assert (found[0].source, found[0].allocated, found[0].count) == ("", 1536, 1)


def test_functions_of_other_cells_are_the_second_level(script):
    other = Cell("def g():\n    b()\n    return c()\n", "<other>", 3)
    s = script(SOURCE, {"<other>": other})
    s.alloc("b", 512, 5, (Frame("/lib/b.py", 9, "b"), Frame("<other>", 2, "g")))
    s.alloc("c", 1024, 5, (Frame("<other>", 3, "g"),))
    s.alloc("own", 2048, 5)
    line = lines(s.recording())[5]
    assert line.allocated == 3584
    assert [(c.cell, c.line, c.function, c.source) for c in line.calls] == [
        (3, 2, "g", "b()"),
        (3, 3, "g", "return c()"),
    ]
    assert [(c.allocated, c.peak, c.count) for c in line.calls] == [(512, 512, 1), (1024, 1536, 1)]


def test_autograds_own_thread_works_for_the_line_that_called_backward(script, frames):
    """On CUDA the engine's threads have no Python stack."""
    s = script(SOURCE)
    s.alloc("x", 4096, 4)
    s.alloc("root", 512, 5, frames.root)
    s.alloc("grad", 1024, phase=Phase.BACKWARD)
    s.free("x", phase=Phase.BACKWARD)
    s.alloc("later", 2048)
    found = lines(s.recording())
    assert [*found] == [0, 4, 5]
    assert (found[5].allocated, found[5].freed) == (1536, 4096)
    assert found[0].allocated == 2048


def test_a_backward_that_no_line_called_stays_on_line_zero(script):
    s = script(SOURCE)
    s.alloc("x", 4096, 4)
    s.alloc("grad", 1024, phase=Phase.BACKWARD)
    assert {n: line.allocated for n, line in lines(s.recording()).items()} == {0: 1024, 4: 4096}


def test_a_line_that_only_gives_segments_back_is_listed(script):
    s = script(SOURCE)
    at = s.segment(2 << 20, 4)
    s.segment(-(2 << 20), 5, at=at)
    found = lines(s.recording())
    assert (found[5].allocated, found[5].freed, found[5].peak) == (0, 0, 0)


def test_a_line_past_the_end_of_the_source_has_no_text(script):
    s = script("x = 1\n")
    s.alloc("a", 512, 9)
    assert lines(s.recording())[9].source == ""
