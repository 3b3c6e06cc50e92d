"""Callbacks of the panel: what they do, what happens when they fail, and who may act when."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpumem_magic.renderers.document import Line, Row, Section, Table

pytest.importorskip("ipywidgets")

from gpumem_magic.panel.controls import fitted
from gpumem_magic.panel.past import HEAD, row_text


@pytest.fixture
def measured(board, rich, cell, settle):
    """The panel after two measured cells, with all sections open."""
    cell(rich, "%%gpumem -q --name first\na = 1\nb = 2")
    cell(rich, "%%gpumem -q --name second\na = 1")
    settle(board)
    with board.desk.quiet():
        for switch in board.header.switches.values():
            switch.value = True
    board.redraw()
    return board


def test_a_row_chooses_the_report_of_all_views(measured):
    measured.past.rows.index = 0
    assert "first" in measured.cell.course.value
    assert "b = 2" in measured.cell.source.value
    measured.past.rows.index = 1
    assert "second" in measured.cell.course.value


def test_the_slider_tells_what_was_alive_at_each_moment(measured):
    told = set()
    for moment in range(measured.cell.moment.max + 1):
        measured.cell.moment.value = moment
        told.add(measured.cell.alive.value)
    assert len(told) == measured.cell.moment.max + 1
    assert any("3.00\xa0MiB allocated" in text for text in told)


@pytest.mark.parametrize(("lines", "whole"), [(1, True), (12, True), (300, False)])
def test_a_comparison_is_shown_as_far_as_it_fits(lines, whole):
    head = ("line", "report 1", "report 2", "change")
    levels, by_line = (
        Table(
            caption,
            head,
            tuple(Row((f"{caption} {n}: x = net(y)", *["512.00 MiB"] * 3)) for n in range(count)),
        )
        for caption, count in (("level", 3), ("line", lines))
    )
    brief = Section((Line("this is said below as well"),), brief=True)
    document = Section((Line("same peak"), levels)), brief, Section((by_line,))
    shown = fitted(document, ": the magic shows all")
    assert len(json.dumps(shown)) < 20_000
    assert "level 2" in shown
    assert "line 0" in shown
    assert "as well" not in shown
    assert shown.index("level 0") < shown.index("line 0")
    assert (f"line {lines - 1}:" in shown) == whole
    assert ("more: the magic shows all" in shown) != whole


def test_a_prediction_is_called_as_its_report_or_by_its_code(measured):
    predict = measured.predict
    predict.run.click()
    assert ">second</span> \u00b7 <span" in predict.result.value
    assert "predicted for" in predict.result.value
    predict.what.value = predict.what.options[1]
    predict.code.value = "\nc = 3\nd = 4"
    predict.run.click()
    assert ">c = 3</span> \u00b7 <span" in predict.result.value


def test_a_row_of_the_history_keeps_its_numbers_apart(measured):
    report = replace(measured.desk.state.history[1], seconds=93.0)
    row = row_text(1, report)
    assert "  1 min 33 s" in row
    assert row.index("1 min") + len("1 min 33 s") == HEAD.index("time") + len("time")


def test_two_reports_are_compared(measured):
    measured.past.rows.index = 1
    measured.past.other.value = 1
    assert "Allocated by line" in measured.past.difference.value or (
        "same peak" in measured.past.difference.value
    )
    measured.past.other.value = None
    assert measured.past.difference.value == ""


def test_their_courses_are_drawn_not_spelled_with_blocks(measured):
    measured.past.rows.index = 1
    measured.past.other.value = 1
    drawn = measured.past.difference.value
    picture = drawn[drawn.index("<svg") : drawn.index("</svg>")]
    assert picture.count("<path ") == 2
    assert "\u2588" not in drawn
    assert "<pre" not in drawn


def test_the_range_limits_rows_and_plot(measured):
    measured.past.first.value = 2
    assert len(measured.past.rows.options) == 1
    assert "report 1" not in measured.past.plot.value
    measured.past.all.click()
    assert len(measured.past.rows.options) == 2


@pytest.mark.parametrize("form", ["html", "json", "csv", "png"])
@pytest.mark.parametrize("what", ["all reports", "the chosen report"])
def test_reports_are_saved(measured, tmp_path, form, what):
    measured.export.what.value, measured.export.form.value = what, form
    measured.export.name.value = str(tmp_path / "kept")
    measured.export.save.click()
    path = tmp_path / f"kept.{form}"
    assert path.stat().st_size > 100
    assert str(path) in measured.desk.message.value
    if form == "json":
        data = json.loads(path.read_text())
        assert len(data["reports"]) == 2 if what == "all reports" else "lines" in data


def test_clearing_asks_first(measured):
    measured.export.clear.click()
    assert len(measured.desk.host.history) == 2
    measured.export.keep.click()
    measured.export.clear.click()
    measured.export.sure.click()
    assert len(measured.desk.host.history) == 0
    assert measured.past.rows.options == ()
    assert "No cell was measured" in measured.cell.course.value


def test_a_callback_that_raises_leaves_a_message_and_a_working_panel(measured, monkeypatch):
    def broken(path, files):
        raise OSError("no <space> left")

    with monkeypatch.context() as patch:
        patch.setattr("gpumem_magic.panel.export.write", broken)
        measured.export.save.click()
    assert "Saving failed: OSError: no &lt;space&gt; left" in measured.desk.message.value
    measured.past.rows.index = 0
    assert "first" in measured.cell.course.value


def test_a_device_that_does_not_start_is_told_and_the_old_one_stays(measured, monkeypatch):
    def choose(name):
        raise RuntimeError("no such luck")

    monkeypatch.setattr("gpumem_magic.magics.monitor.choose_source", choose)
    with monkeypatch.context():
        measured.header.device.value = "H100-80GB"
    assert "no such luck" in measured.desk.message.value
    assert measured.header.device.value == measured.desk.host.settings.device == "auto"


def test_device_and_measuring_follow_the_settings_both_ways(measured, rich, cell, settle):
    measured.header.device.value = "A100-80GB"
    assert measured.desk.host.settings.device == "A100-80GB"
    cell(rich, "%gpumem --device L4\n%gpumem --on")
    assert measured.header.device.value == "L4"
    assert measured.header.every.value is True
    assert measured.header.every.description == "Measure every cell: on"
    measured.header.every.value = False
    assert measured.desk.host.settings.every_cell is False
    settle(measured)


def test_nothing_acts_on_the_device_while_a_cell_runs(measured):
    measured.desk.host.running = True
    try:
        measured.advice.measure.click()
        assert "A cell is running" in measured.desk.message.value
        measured.header.device.value = "H200"
        assert measured.header.device.value == "auto"
    finally:
        measured.desk.host.running = False


def test_where_there_is_no_advice_there_is_nothing_to_press_but_measure(measured):
    section = measured.advice
    assert section.list.layout.display == "none"
    assert [b.disabled for b in (section.insert, section.explain, section.ignore)] == [True] * 3
    assert "No changed cell" in section.insert.tooltip
    assert not section.measure.disabled


@pytest.mark.parametrize(
    "click",
    [
        lambda board: setattr(board.past.rows, "index", 0),
        lambda board: setattr(board.header.switches["Predict"], "value", True),
        lambda board: setattr(board.cell.moment, "value", 1),
        lambda board: setattr(board.past.other, "value", 1),
    ],
    ids=["row", "section", "moment", "comparison"],
)
def test_a_click_sends_each_control_once_at_most(measured, monkeypatch, click):
    with measured.desk.quiet():
        measured.header.switches["Predict"].value = False
    sent = []

    def send(widget, message, buffers=None):
        sent.extend((widget.model_id, name) for name in message.get("state", ()))

    monkeypatch.setattr("ipywidgets.Widget._send", send)
    click(measured)
    assert sent
    assert len(sent) == len(set(sent))


def test_advice_needs_advice(measured):
    measured.advice.insert.click()
    assert "there is no advice" in measured.desk.message.value
