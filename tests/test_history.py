"""The history of a notebook: numbers, comparisons, files."""

from __future__ import annotations

import json
import os
import pickle
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gpumem_magic.history import DETAILED, History, compare
from gpumem_magic.renderers.formats.json import dumps, loads
from gpumem_magic.units import MIB
from gpumem_magic.values.comparison import Difference
from gpumem_magic.values.findings import Level, Line, Timeline
from gpumem_magic.values.recording import Category as K
from gpumem_magic.values.recording import Cell, Device
from gpumem_magic.values.report import Report


def report(name, sources=("a()", "b()"), scale=1, **changes):
    """A cell whose n-th line allocates n * scale MiB."""
    lines = tuple(
        Line(n, source, n * scale * MIB, 0, n * scale * MIB, n * scale * MIB, 1)
        for n, source in enumerate(sources, 1)
    )
    top = sum(line.net for line in lines)
    column = np.array([0, top], np.int64)
    kinds = np.zeros((2, len(K)), np.int64)
    kinds[1, 0] = top
    return replace(
        Report(
            name=name,
            cell=Cell("\n".join(sources), "<cell>", 1),
            device=Device("Tesla T4", 0, 15_642_329_088, (7, 5), True),
            predicted=False,
            started=0.0,
            seconds=0.5,
            before=Level(0, 0, 0),
            peak=Level(top, 20 * MIB, 20 * MIB),
            after=Level(top, 20 * MIB, 20 * MIB),
            context=0,
            others=0,
            lines=lines,
            blocks=(),
            at_peak={K.PARAMETER: top},
            at_end={K.PARAMETER: top},
            timeline=Timeline(
                np.array([0.0, 0.5]), column, column, np.array([0, 1], np.int32), kinds, 1
            ),
            oom=None,
            retries=0,
            error=None,
            unknown={},
            notes=(),
        ),
        **changes,
    )


@pytest.fixture
def history():
    kept = History()
    for one in (report("first"), report("second", scale=2), report("third", ("b()", "c()", "b()"))):
        kept.append(one)
    return kept


def test_reports_are_numbered_from_one(history):
    assert [one.name for one in history] == ["first", "second", "third"]
    assert history.show(2).name == history[2].name == "second"
    assert len(history) == 3
    assert history.reports == tuple(history)


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_wrong_number_names_the_right_ones(number, history):
    with pytest.raises(IndexError, match=rf"no report {number}: the history has 1 to 3"):
        history.show(number)


def test_an_empty_history_says_so():
    with pytest.raises(IndexError, match="the history is empty"):
        History().show(1)
    assert History().text() == "The history is empty."


def test_clear(history):
    history.clear()
    assert len(history) == 0


def test_the_list_has_one_line_each(history):
    rows = history.text().splitlines()
    words = " ".join(rows[1].split())
    assert words == "1 first 3.0 MiB +3.0 MiB kept 0.5 s"
    assert rows[-1].strip() == "all on a virtual Tesla T4"
    assert all(len(row) <= 80 for row in rows)
    assert "second" in history._repr_mimebundle_()["text/html"]


def test_compare_levels_and_kinds(history):
    comparison = history.compare(1, 2)
    peak = comparison.levels[0]
    assert (peak.name, peak.first, peak.second, peak.change) == (
        "peak allocated", 3 * MIB, 6 * MIB, 3 * MIB,
    )  # fmt: skip
    assert [d.name for d in comparison.categories] == ["parameter"]
    assert comparison.levels[-1].name == "kept"


def test_lines_pair_by_their_text_in_order(history):
    pairs = history.compare(1, 3).lines
    found = [(p.source, p.first and p.first.number, p.second and p.second.number) for p in pairs]
    assert found == [("b()", 2, 1), ("c()", None, 2), ("b()", None, 3), ("a()", 1, None)]
    assert [pair.allocated.change for pair in pairs] == [-MIB, 2 * MIB, 3 * MIB, -MIB]


def test_what_is_unknown_has_no_change(history):
    history.append(report("blind", peak=Level(None, None, None), at_peak={}))
    comparison = history.compare(1, 4)
    assert comparison.levels[0].change is None
    assert comparison.categories[0].second is None
    assert "whether the peak changed is unknown" in comparison.text()


def test_the_comparison_in_words(history):
    text = history.compare(2, 1).text()
    assert text.splitlines()[:2] == [
        "report 2 (second) \u2192 report 1 (first)", "the peak is 3.00 MiB (50 %) lower",
    ]  # fmt: skip
    assert all(len(row) <= 80 for row in text.splitlines())
    html = history.compare(2, 1)._repr_mimebundle_()["text/html"]
    assert "the peak is 3.00\xa0MiB (50\xa0%) lower" in html
    assert "same peak: 3.00 MiB" in history.compare(1, 1).text()


def test_a_line_that_a_cell_does_not_have_allocated_nothing_there(history):
    rows = [" ".join(row.split()) for row in history.compare(1, 3).text().splitlines()]
    assert "new c() - 2.0 MiB +2.0 MiB" in rows
    assert "gone a() 1.0 MiB - -1.0 MiB" in rows


def test_the_device_is_named_once_unless_there_are_several(history):
    assert history.text().count("virtual Tesla T4") == 1
    history.append(replace(history[1], device=replace(history[1].device, virtual=False)))
    assert history.text().count("(virtual Tesla T4)") == 3
    assert "(measured on Tesla T4)" in history.text()


def test_the_numbers_of_all_its_tables_stand_below_each_other(history):
    rows = history.compare(1, 3).text().splitlines()
    first, second = (
        next(n for n, row in enumerate(rows) if row.startswith(f"In {name}"))
        for name in ("numbers", "detail")
    )
    for table in (rows[first:second], rows[second:]):
        numbers = [row for row in table if re.search(r"(change|bytes|[KMG]iB)$", row)]
        assert len(numbers) > 3
        assert len({len(row) for row in numbers}) == 1


def test_a_comparison_is_kept_and_saved(history, tmp_path):
    comparison = history.compare(2, 1)
    values = comparison.to_dict()
    assert (values["what"], values["numbers"]) == ("comparison", [2, 1])
    assert values["levels"][0] == {"name": "peak allocated", "first": 6 * MIB, "second": 3 * MIB}
    comparison.save(tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text()) == values
    comparison.save(tmp_path / "c.txt")
    assert (tmp_path / "c.txt").read_text() == comparison.text() + "\n"


def test_names_are_escaped(history):
    history.append(report("<b>", ("x = '<script>'",)))
    for html in (history, history.compare(1, 4)):
        assert "<b>" not in html._repr_mimebundle_()["text/html"]
        assert "<script>" not in html._repr_mimebundle_()["text/html"]


def test_saved_and_loaded_it_is_the_same(history, tmp_path):
    history.save(tmp_path / "h.json")
    other = History()
    other.append(history[1])
    other.load(str(tmp_path / "h.json"))
    assert other.reports == (history[1], *history.reports)


def test_a_single_saved_report_loads_too(history, tmp_path):
    history[2].save(tmp_path / "r.json")
    history.load(tmp_path / "r.json")
    assert history[4] == history[2]


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": 1}', '{"format": 1, "reports": 3}', "\x00"]
)
def test_a_broken_file_changes_nothing(content, history, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(content)
    before = history.reports
    with pytest.raises(ValueError, match=r"bad\.json: "):
        history.load(path)
    assert history.reports == before


def test_one_broken_report_among_good_ones_changes_nothing(history, tmp_path):
    path = tmp_path / "h.json"
    history.save(path)
    data = json.loads(path.read_text())
    del data["reports"][2]["peak"]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"report\.peak is missing"):
        history.load(path)
    assert len(history) == 3


def test_files_that_are_no_text_or_no_json(history, tmp_path):
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"x\.json"):
        history.load(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"loaded from \.json"):
        history.load(tmp_path / "x.csv")
    with pytest.raises(FileNotFoundError):
        history.load(tmp_path / "none.json")


@pytest.mark.parametrize("suffix", ["csv", "html", "txt", "png", "svg"])
def test_every_form_holds_all_reports(suffix, history, tmp_path):
    path = tmp_path / f"h.{suffix}"
    history.save(path)
    if suffix != "png":
        text = path.read_text()
        assert len(text.splitlines()) > 3
        if suffix != "svg":
            assert all(one.name in text for one in history)


def test_another_suffix_is_refused(history, tmp_path):
    with pytest.raises(ValueError, match=r"saved as \.json"):
        history.save(tmp_path / "h.xls")
    with pytest.raises(ValueError, match="holds one report"):
        history.save(tmp_path / "h.pickle")


def test_a_figure_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing was measured yet"):
        History().save(tmp_path / "h.png")
    History().save(tmp_path / "h.json")
    again = History()
    again.load(tmp_path / "h.json")
    assert again.reports == ()


def test_a_memory_snapshot_of_pytorch_is_loaded(tmp_path):
    path = tmp_path / "oom.pickle"
    held = {"address": 512, "size": 512, "requested_size": 500, "state": "active_allocated"}
    segment = {"device": 0, "address": 512, "total_size": 512, "blocks": [held]}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    history = History()
    history.load(path)
    assert [report.after.allocated for report in history] == [512]
    path.write_bytes(b"no snapshot")
    with pytest.raises(ValueError, match=r"oom\.pickle"):
        history.load(path)
    assert len(history) == 1


def test_old_reports_keep_their_levels_and_say_so():
    history = History()
    late = replace(report("with an error"), oom=SimpleNamespace(point=1))
    history.append(report("first"))
    history.append(late)
    for n in range(DETAILED):
        history.append(report(f"number {n}"))
    first = history.show(1)
    assert (len(first.timeline.allocated), first.timeline.peak) == (0, -1)
    assert "lines and timeline are forgotten" in first.text()
    assert (first.lines, first.peak) == ((), history.show(3).peak)
    assert history.compare(1, 3).levels
    assert loads(dumps(first)) == (first,)
    assert history.show(2) is late
    assert len(history.show(3).timeline.allocated) == 2


def test_old_reports_share_what_is_equal():
    history = History()
    for n in range(DETAILED + 3):
        history.append(report(f"number {n % 2}"))
    first, second = history.show(2), history.show(3)
    assert first.name != second.name
    for part in ("device", "peak", "at_peak"):
        assert getattr(first, part) is getattr(second, part)
    assert first.cell.source is second.cell.source
    assert loads(dumps(second)) == (second,)


def test_lines_that_allocate_in_neither_cell_are_not_told():
    idle = Line(2, "del a", 0, MIB, -MIB, MIB, 1)
    one = report("one")
    first, second = (replace(each, lines=(each.lines[0], idle)) for each in (one, report("b")))
    assert "del a" not in compare(first, second).text()
    assert "del a" in compare(first, report("c", ("a()", "del a"))).text()


def test_what_did_not_change_is_the_same(history):
    rows = [" ".join(row.split()) for row in history.compare(1, 1).text().splitlines()]
    assert "parameter 3.0 MiB 3.0 MiB same" in rows


def test_a_line_that_changed_the_peak_is_told_with_its_text(history):
    comparison = history.compare(1, 2)
    frames, sources = (Difference("In[1]:2", 0, MIB),), {"In[1]:2": "b()"}
    text = replace(comparison, frames=frames, sources=sources).text()
    assert "the largest part of it: +1.00 MiB in In[1]:2  b()" in text


@pytest.mark.parametrize("name", ["pipe.json", "pipe.pickle", "null.json"])
def test_what_is_no_file_is_not_read(tmp_path, name):
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.pickle")
    (tmp_path / "null.json").symlink_to(os.devnull)
    with pytest.raises(OSError, match=f"not a regular file.*{name}"):
        History().load(tmp_path / name)
