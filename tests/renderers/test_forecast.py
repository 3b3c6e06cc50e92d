"""The largest value that fits, as text and as HTML."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumem_magic.renderers.forecast import largest_to_dict
from gpumem_magic.renderers.terminal import width
from gpumem_magic.values.forecast import Fit, Fits
from gpumem_magic.values.report import Report


def largest_text(found):
    return Fits(tuple(found)).text()


def largest_html(found):
    return Fits(tuple(found))._repr_mimebundle_()["text/html"]


@pytest.fixture
def found(reports):
    fits, unfit = reports["predicted"](), reports["unfit"]()
    above = replace(unfit, flow_guessed=False, name="batch_size = 97")
    return Fit("batch_size", 96, replace(fits, name="batch_size = 96"), above, 9)


def test_golden(found, same_as_golden):
    same_as_golden("largest.txt", largest_text([found]) + "\n")
    same_as_golden("largest.html", largest_html([found]).replace("><", ">\n<") + "\n")


def test_it_says_the_value_and_what_happens_above_it(found):
    page = re.sub("<[^>]*>", "", largest_html([found])).replace("\xa0", " ")
    for text in (largest_text([found]), page):
        assert "The largest batch_size that fits Tesla T4 (14.57 GiB) is 96" in text
        assert "Fits: 14.09 GiB of 14.57 GiB free" in text
        assert "out of memory in line 7, at least 303.50 MiB short:" in " ".join(text.split())
        assert "9 dry runs" in text
    assert re.findall(r"^  batch_size = (\d+)", largest_text([found]), re.MULTILINE) == ["96", "97"]


def test_the_line_that_fails_stands_on_a_line_of_its_own(found):
    rows = [row.strip() for row in largest_text([found]).splitlines()]
    assert "optimizer.step()" in rows


def test_it_says_how_much_of_it_was_there_before_the_cell(found):
    assert "before the cell" not in largest_text([found])
    before = replace(found.report.before, allocated=300 << 20)
    full = replace(found, report=replace(found.report, before=before))
    assert "300.00 MiB of the peak was allocated before the cell" in largest_text([full])


def test_nothing_fits(found):
    above = replace(found.next_report, name="batch_size = 1")
    none = replace(found, value=0, report=None, next_report=above, runs=1)
    text = largest_text([none])
    assert "No batch_size fits: 1 is too large for Tesla T4" in text
    assert "1 dry run" in text
    assert "  batch_size = 1  " in text


def test_a_guessed_way_makes_it_probable(found):
    guessed = replace(found, report=replace(found.report, flow_guessed=True))
    assert "The largest batch_size that probably fits Tesla T4" in largest_text([guessed])


def test_what_was_not_proven_is_not_said(found):
    open_end = replace(found, exact=False, next_report=None, notes=("Up to 96 was tried.",))
    text = largest_text([open_end])
    assert "The largest batch_size found to fit Tesla T4 (14.57 GiB) is 96" in text
    assert "note: Up to 96 was tried." in text
    assert "97" not in text
    above = replace(found.next_report, name="batch_size = 120")
    assert "  batch_size = 120  " in largest_text([replace(open_end, next_report=above)])


def test_many_cards_each_have_a_headline_and_a_table(found):
    text = largest_text([found, replace(found, value=100)])
    heads = [row for row in text.splitlines() if row.startswith("The largest")]
    assert [row.rpartition(" ")[2] for row in heads] == ["96", "100"]


def test_a_page_shows_one_table_of_many_cards_and_folds_the_rest(found):
    open_end = replace(found, value=100, exact=False, notes=("Up to 100 was tried.",))
    none = replace(found, value=0, report=None)
    first, _, folded = largest_html([found, open_end, none]).partition("<details")
    assert first.count("<table") == 1
    assert folded.count("<table") == 3
    cells = re.findall(r"<td[^>]*>(?:<span[^>]*>)?([^<]+)", first)
    assert [cells[i] for i in (0, 4, 8)] == ["96", "at least 100", "none"]
    assert "note: Up to 100 was tried." in folded  # of one card; what holds for all stands below
    assert "Probably" not in first
    assert "out of memory in line" in first  # what happens with 1 on the last card


def test_every_line_fits_80_columns(found):
    long = replace(found, name="n" * 90)
    for line in largest_text([found, long]).splitlines():
        assert width(line) <= 80, line


def test_as_values_it_has_the_reports_one_after_the_other(found):
    data = largest_to_dict([found, replace(found, value=0, report=None)])
    assert [fit["value"] for fit in data["fits"]] == [96, 0]
    assert data["fits"][0]["device"] == "Tesla T4"
    assert [Report.from_dict(one) for one in data["reports"]] == [
        found.report,
        found.next_report,
        found.next_report,
    ]


def test_what_holds_for_all_cards_is_said_once(found):
    noted = replace(found, notes=("3 % stays free.",))
    own = replace(noted, value=100, notes=("3 % stays free.", "Up to 100 was tried."))
    for said in (largest_text([noted, own]), largest_html([noted, own])):
        assert said.count("3 % stays free.") == 1 + said.count('title="note: 3 % stays free."')
        assert said.count("Up to 100 was tried.") == 1
