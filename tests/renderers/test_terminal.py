"""Columns of a terminal: wide, narrow and invisible characters; tables that stack."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.renderers.document import Line, Row, Section, Table
from gpumem_magic.renderers.terminal import bar, fit, fit_middle, left, printed, right, width, wrap


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("数据", 4), ("e\u0301", 1), ("\U0001f600", 2), ("", 0)]
)
def test_width(text, columns):
    assert width(text) == columns


@settings(max_examples=50)
@given(st.text(max_size=40), st.integers(2, 30))
def test_fitted_text_is_as_wide_as_asked(text, columns):
    assert width(fit(text, columns)) <= columns
    assert width(fit_middle(text, columns)) <= columns
    assert width(left(text, columns)) == columns


def test_a_name_keeps_both_ends():
    assert fit_middle("model.layers[31].mlp.weight", 15) == "model.l….weight"


def test_a_number_is_never_cut():
    assert right("1023.00 MiB", 4) == "1023.00 MiB"


def test_a_size_is_not_torn_apart():
    for line in wrap("x" * 74 + " 12.00 MiB and more", "  "):
        assert line.count("12.00") == line.count("12.00 MiB")


@pytest.mark.parametrize(("share", "drawn"), [(0, ""), (0.5, "██"), (1, "████"), (2, "████")])
def test_bar(share, drawn):
    assert bar(share, 4) == drawn


def rows_of(*rows, head):
    return printed((Section((Table("Held", head, rows),)),)).splitlines()


def test_a_name_without_room_gets_a_row_of_its_own():
    found = rows_of(Row(("a", "1.00 MiB")), Row(("n" * 75, "2.00 MiB")), head=("name", "size"))
    assert found == [
        "Held          size",
        "  a       1.00 MiB",
        "  " + "n" * 75,
        "          2.00 MiB",
    ]


def test_a_column_without_room_goes_below_the_name_and_an_empty_one_away():
    cells = [f"{number}.00 GiB {'x' * 20}" for number in range(4)]
    head = ("name", "a", "b", "nothing", "c", "d")
    found = rows_of(Row(("it", *cells[:2], "", *cells[2:])), head=head)
    assert found[1].split() == ["it", "0.00", "GiB", "x" * 20, "1.00", "GiB", "x" * 20]
    assert " ".join(" ".join(found[2:]).split()) == f"c {cells[2]} · d {cells[3]}"
    assert "nothing" not in " ".join(found)


def test_what_is_below_a_row_and_inside_it_stands_deeper():
    inner = Row(("part", "1"), (Line("said of the part"),))
    found = rows_of(Row(("whole", "2"), (Line("said of the whole"),), (inner,)), head=("", "n"))
    assert [len(row) - len(row.lstrip()) for row in found] == [0, 2, 6, 4, 8]


def test_an_alarm_is_indented_below_its_first_line():
    document = (Section((Line("first"), Line("second")), alarm=True), Section(()))
    assert printed(document) == "first\n  second"
