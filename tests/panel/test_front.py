"""The panel as the ES module sees it: when it is chosen, what it is sent, what it may ask for."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import replace

import pytest

pytest.importorskip("anywidget")

from gpumem_magic.panel.front import packed
from gpumem_magic.values.advice import Advice


@pytest.fixture
def answered(rich, cell, monkeypatch):
    """The panel after two measured cells, in a browser that has the module."""
    monkeypatch.setattr("gpumem_magic.panel.front.PATIENCE", 60.0)
    cell(rich, "%gpumem --panel")
    (board,) = rich.magics_manager.registry["GpuMemMagics"].monitor.observers
    say(board, hello=True)
    cell(rich, "%%gpumem -q --name first\na = 1\nb = 2")
    cell(rich, "%%gpumem -q --name second\na = 1")
    return board


def say(board, **content):
    """What the module sends."""
    board.front.widget._handle_custom_msg(content, [])


def look(board, tab):
    board.front.widget.tab = tab


def test_nothing_is_shown_before_it_is_known_what_the_browser_has(rich, cell, monkeypatch):
    monkeypatch.setattr("gpumem_magic.panel.front.PATIENCE", 60.0)
    cell(rich, "%gpumem --panel")
    (board,) = rich.magics_manager.registry["GpuMemMagics"].monitor.observers
    assert board.root.children == ()
    say(board, hello=True)
    assert board.root.children == (board.front.widget,)


def test_a_browser_that_answers_late_is_shown_the_module_after_all(board):
    assert board.header.box in board.root.children
    say(board, hello=True)
    assert board.root.children == (board.front.widget,)


def test_without_the_package_the_core_controls_serve_and_say_how_to_get_more(
    rich, cell, monkeypatch
):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr("gpumem_magic.panel.front.PATIENCE", 60.0)
    cell(rich, "%gpumem --panel")
    (board,) = rich.magics_manager.registry["GpuMemMagics"].monitor.observers
    assert board.header.box in board.root.children
    assert "pip install anywidget" in board.header.better.value


def test_a_tab_is_drawn_when_it_is_looked_at(answered, settle):
    settle(answered)
    look(answered, "History")
    rows = answered.front.widget.rows
    assert [(row["number"], row["name"]) for row in rows["rows"]] == [(2, "second"), (1, "first")]
    assert rows["chosen"] == 2
    assert answered.front.widget.now["body"] == ""
    look(answered, "Cell")
    assert json.loads(zlib.decompress(answered.front.widget.course))["source"][1:] == ["a = 1"]


def test_the_module_chooses_compares_and_sets(answered, settle):
    settle(answered)
    look(answered, "History")
    say(answered, choose=1)
    say(answered, compare=2)
    assert "second" in answered.past.difference.value
    say(answered, compare=None)
    assert answered.past.difference.value == ""
    say(answered, set=["Export.name", "value", "mine"])
    assert answered.export.name.value == "mine"
    say(answered, set=["Export.name", "layout", "mine"], choose=77)
    assert "there is no report 77" in answered.desk.message.value


def test_one_message_has_the_whole_course_or_as_much_as_fits(answered, settle):
    settle(answered)
    report = answered.desk.state.history[1]
    assert packed(None) == b""
    assert 0 < len(packed(report)) < 20_000
    lines = "\n".join(f"y{n} = '{hash(str(n)):x}'" for n in range(8000))
    large = replace(report, cell=replace(report.cell, source=lines))
    assert len(packed(large)) < 20_000


def test_peaks_are_the_same_on_every_tab(answered, settle):
    settle(answered)
    look(answered, "Now")
    look(answered, "History")
    (row, _) = answered.front.widget.rows["rows"]
    assert row["peak"] == 3 << 20
    look(answered, "Cell")
    assert "peak 3.00\xa0MiB" in answered.cell.course.value


def test_closing_takes_it_all_away(answered, settle):
    settle(answered)
    answered.close()
    assert answered.root.children == (answered.desk.message,)
    assert answered.front.widget.comm is None


def test_a_changed_cell_is_inserted_by_the_page_or_else_by_the_kernel(
    answered, settle, monkeypatch
):
    settle(answered)
    sent, given = [], []
    monkeypatch.setattr(answered.front.widget, "send", lambda said, _: sent.append(said))
    monkeypatch.setattr(answered.desk.host.shell, "set_next_input", given.append)
    advice = Advice("missing-no-grad", "...", "...", source="b = 1")
    monkeypatch.setattr(type(answered.advice), "_required", lambda _: advice)
    answered.advice.insert.click()
    assert (sent, given) == ([{"insert": "b = 1"}], [])
    say(answered, inserted=True)
    assert "inserted below this one" in answered.desk.message.value
    say(answered, inserted=False)
    assert given == ["b = 1"]
    assert "below the next cell that you run" in answered.desk.message.value


def test_a_report_is_downloaded_in_the_form_that_is_chosen(answered, settle, monkeypatch):
    settle(answered)
    sent = []
    monkeypatch.setattr(answered.front.widget, "send", lambda *what: sent.append(what))
    say(answered, download=True)
    answered.export.what.value = "the chosen report"
    answered.export.form.value = "json"
    say(answered, download=True)
    (all_, (page,)), (one, (data,)) = sent
    assert (all_, one) == (
        {"download": "gpumem-history.html"},
        {"download": "gpumem-history.json"},
    )
    assert page.startswith(b"<!DOCTYPE html>")
    assert json.loads(data)["name"] == "second"
