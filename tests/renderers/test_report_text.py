"""Golden texts of hand-made reports, and what holds for every text."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpumem_magic.renderers import mimebundle
from gpumem_magic.renderers.advice import first_advice
from gpumem_magic.renderers.document import Table
from gpumem_magic.renderers.report import report_document, summary_line
from gpumem_magic.renderers.terminal import plain, width
from gpumem_magic.units import GIB, KIB, MIB, format_bytes, format_size
from gpumem_magic.values.advice import Advice
from gpumem_magic.values.findings import Block, Called, Level, Line
from gpumem_magic.values.recording import Category

GOLDEN = Path(__file__).parent / "golden"


def same_as_golden(name, text):
    """WRITE_GOLDEN=1 writes the files anew: look at the difference before you commit it."""
    path = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
        pytest.skip("written, not compared")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["story", "unknown", "calling", "hostile", "empty", "predicted", "unfit", "raised"]
)
def test_golden(name, reports):
    same_as_golden(f"{name}.txt", reports[name]().text() + "\n")


def test_every_line_fits_80_columns(report):
    for line in report.text().split("\n"):
        assert width(line) <= 80, line


def test_nothing_in_it_can_steer_a_terminal(hostile):
    text = hostile.text()
    assert all(character.isprintable() or character in "\n\u200d" for character in text)
    assert "\\x1b[31m" in text
    assert "\\u202e" in text


def test_unknown_numbers_are_never_zero(unknown):
    text = unknown.text()
    assert "peak unknown" in text
    before = next(line for line in text.splitlines() if line.startswith("  before"))
    assert before.split() == ["before", "unknown", "unknown", "unknown"]
    assert "unknown: after.device_used, context, others, because the driver" in text


def test_the_parts_add_up_to_what_nvidia_smi_shows(story):
    text = " ".join(story.text().split())
    assert (
        "allocated 13.00 GiB + cached 1.20 GiB + context 112.00 MiB; "
        "nvidia-smi would show 14.31 GiB"
    ) in text


def test_where_parts_cannot_be_told_apart_they_stand_as_one(story):
    report = replace(story, context=None, others=None, unknown={"context": "no process list"})
    assert "context and other processes 112.00 MiB" in " ".join(report.text().split())


def test_bytes_that_no_part_explains_are_shown(story):
    level = replace(story.after, device_used=story.after.device_used + 5 * MIB)
    text = " ".join(replace(story, after=level).text().split())
    assert "not accounted for 5.00 MiB" in text


def test_a_long_cell_shows_its_largest_lines_in_order(story):
    lines = tuple(Line(n, f"x{n} = 1", n * KIB, 0, n * KIB, None, 1) for n in range(1, 41))
    text = replace(story, lines=lines).text()
    numbers = [int(row.split()[0]) for row in text.splitlines() if " = 1" in row]
    assert numbers == list(range(26, 41))
    assert "... and 25 lines that moved less" in text


def test_a_cell_that_did_nothing_is_one_line(reports):
    empty = reports["empty"]()
    broken = replace(empty, error="SyntaxError: invalid syntax", predicted=False)
    for report in (empty, broken):
        line = report.text()
        assert line.startswith("In[3] \u00b7 nothing allocated or freed")
        assert line.count("\n") == (report is broken)  # it is longer than 80 columns
    assert replace(empty, predicted=True).text().startswith("In[3] \u00b7 Fits: ")
    assert broken.text().endswith("SyntaxError: invalid syntax")
    assert "nothing allocated" not in replace(empty, unknown={"lines": "lost"}).text()


def test_what_was_there_before_is_still_allocated(reports):
    """A cell that did nothing does not say "nothing allocated" and "18 MiB allocated" in a row."""
    empty = reports["empty"]()
    for found, told in ((Level(0, 0, 0), " 0 bytes allocated"), (Level(MIB, MIB, MIB), "still 1.")):
        said = replace(empty, before=found, after=found).text()
        assert told in said
        assert ("still" in said) is bool(found.allocated)
        brief = summary_line(replace(empty, before=found, after=found, seconds=1.0))
        assert brief.startswith("nothing allocated or freed \u00b7 ")
        assert brief.endswith(f"{format_bytes(found.allocated)} allocated \u00b7 1.0 s")


def test_advice_does_not_make_that_line_longer(reports):
    advice = (Advice("earlier-cells", "Earlier cells hold 14.00 GiB.", change="del big"),)
    assert replace(reports["empty"](), advice=advice).text() == reports["empty"]().text()


def test_no_line_ends_between_the_device_and_the_time(reports):
    head = (
        replace(reports["small"](), name="a long name of a cell to train").text().split("\n\n")[0]
    )
    assert head.splitlines()[-1].strip() == "virtual Tesla T4 \u00b7 0 ms"


def test_runs_are_told_only_where_there_are_loops(reports):
    assert "ran 12 times, +5.0 MiB net on average" in reports["calling"]().text()
    assert "ran " not in reports["small"]().text()


def test_a_line_says_what_it_allocated_with_its_calls(reports):
    report = reports["small"]()
    first = replace(report.lines[0], called=Called(3 << 20, 0, 3 << 20))
    whole = format_size(first.allocated + (3 << 20))
    assert f"{whole} allocated with calls" in replace(report, lines=(first,)).text()


def test_summary_line(story, reports):
    calling = reports["calling"]()
    assert summary_line(calling) == "peak 365.00 MiB · +260.00 MiB kept · 1.3 s"
    assert summary_line(story).startswith("Out of memory in line 7: 620.00 MiB asked for · peak")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (GIB, 3 * GIB, "+2.00 GiB kept"),
        (GIB, GIB, "nothing kept"),
        (GIB, MIB, "1023.00 MiB freed"),
        (None, MIB, "unknown amount kept"),
    ],
)
def test_what_is_kept(before, after, said, story):
    report = replace(story, oom=None, before=Level(before, 0, 0), after=Level(after, 0, 0))
    assert said in summary_line(report)


def test_an_error_is_named(story):
    report = replace(story, oom=None, error="ValueError: boo")
    assert summary_line(report).endswith("ValueError: boo")
    assert "the cell raised ValueError: boo" in report.text()


def test_blocks_that_hardly_count_are_counted_not_listed(story):
    large = Block("x", 900 << 20, None, None, Category.INPUT, 1)
    small = tuple(replace(large, name=name, size=4096) for name in ("a", "b"))
    text = replace(story, blocks=(large, *small)).text()
    assert "... and 2 smaller" in text
    assert "smaller" not in replace(story, blocks=(large, small[0])).text()


def in_short(report):
    """The names of the lines that matter most."""
    for section in report_document(report, plot=False):
        for piece in getattr(section, "pieces", ()):
            if isinstance(piece, Table) and piece.caption == "The lines that matter most":
                return [plain(row.cells[0]) for row in piece.rows]
    return []


def test_of_lines_at_the_peak_that_matters_which_moved_most(reports):
    """Not one that ran last and did next to nothing; nor others like it."""
    top = 100 * MIB
    lines = (
        Line(1, "x = make()", MIB // 8, 0, MIB // 8, 60 * MIB, 1),
        Line(2, "y = model(x)", 40 * MIB, 0, 40 * MIB, top - 4 * KIB, 1),
        Line(3, "print(y)", 4 * KIB, 4 * KIB, 0, top, 1),
    )
    report = replace(reports["calling"](), lines=lines, call_tree=(), peak=Level(top, top, top))
    assert in_short(report) == ["2  y = model(x)"]


def test_a_sum_of_runs_that_exceeds_the_peak_says_that_it_is_one(reports):
    """What `loss = model(x)` keeps in each pass, and `backward()` frees, is no part of the peak."""
    lines = (
        Line(1, "loss = model(x)", 60 * MIB, 0, 40 * MIB, 50 * MIB, 3),
        Line(2, "loss.backward()", 0, 60 * MIB, -40 * MIB, 50 * MIB, 3),
        Line(3, "y = x", 8 * MIB, 0, 8 * MIB, 50 * MIB, 1),
    )
    page = mimebundle(replace(reports["calling"](), lines=lines, call_tree=()), True)["text/html"]
    assert "+40.0 MiB kept in 3 runs<" in page
    assert "40.0 MiB freed in 3 runs<" in page
    assert "+8.0 MiB kept<" in page


def test_advice_is_counted_in_pieces(story):
    one = Advice("a", "A problem.", change="Do.")
    for count, told in ((1, "1 piece of advice"), (4, "4 pieces of advice")):
        assert (
            f" \u00b7 {told} \u00b7 "
            in mimebundle(replace(story, advice=(one,) * count), True)["text/html"]
        )


def test_of_an_advice_the_first_thing_is_told_in_short(story):
    said = "Wrap it in torch.no_grad(); this does as well. Price: none."
    for change, told in ((said, "torch.no_grad()."), ("Use 0.5 of it. Price: time.", "of it.")):
        (line,) = first_advice(replace(story, advice=(Advice("a", "A problem.", change=change),)))
        assert plain(line.words).endswith(f" {told}")
