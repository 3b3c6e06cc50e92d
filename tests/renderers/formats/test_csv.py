"""CSV: one row each, numbers as numbers, unknown as empty."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from gpumem_magic.renderers.formats.csv import COLUMNS, to_csv
from gpumem_magic.units import MIB


def rows(*reports):
    return list(csv.DictReader(io.StringIO(to_csv(reports))))


def test_one_row_each(story, unknown):
    first, second = rows(story, unknown)
    assert first["name"] == "train"
    assert int(first["peak_allocated"]) == story.peak.allocated
    assert int(first["kept"]) == story.after.allocated
    assert int(first["oom_requested"]) == 620 * MIB
    assert (first["peak_line"], first["peak_source"]) == ("7", "optimizer.step()")
    assert first["started"] == "2025-10-09T08:53:20+00:00"
    assert (second["peak_allocated"], second["kept"], second["context"]) == ("", "", "")


def test_of_nothing_there_is_a_heading():
    assert to_csv([]) == ",".join(COLUMNS) + "\n"


def test_text_is_one_cell_on_one_line(hostile):
    assert len(to_csv([hostile]).splitlines()) == 2
    assert "</code><script>alert('1')</script> \"q\"" in rows(hostile)[0]["name"]


def test_a_name_is_no_formula(story):
    (row,) = rows(replace(story, name="=HYPERLINK(1)"))
    assert row["name"] == "'=HYPERLINK(1)"
