"""Figures that answer: who is given the widget, what it is told, what it may ask for."""

from __future__ import annotations

import json
import sys
import zlib

import pytest

pytest.importorskip("anywidget")

from gpumem_magic.renderers.figure.interactive import key_of
from tests.panel.conftest import run

MAKE = "%%gpumem --name {}\na = 1"


def monitor_of(shell):
    return shell.magics_manager.registry["GpuMemMagics"].monitor


@pytest.fixture
def in_a_page(rich, monkeypatch):
    """The shell as JupyterLab's cells see it."""
    monkeypatch.setattr(rich, "get_parent", lambda: {"metadata": {"cellId": "a"}}, raising=False)
    return rich


def asked(figures, **content):
    """What the kernel answers."""
    sent = []
    figures.widget.send = lambda said, buffers: sent.append((said, buffers))
    figures.widget._handle_custom_msg(content, [])
    ((said, (buffer,)),) = sent
    return said, buffer


def test_what_runs_notebooks_without_a_page_gets_no_widget(rich):
    run(rich, MAKE.format("alone"))
    assert monitor_of(rich)._figures is None


def test_the_page_learns_which_figures_answer_and_gets_a_course_when_it_asks(in_a_page):
    shown = run(in_a_page, MAKE.format("first"))
    run(in_a_page, MAKE.format("second"))
    monitor = monitor_of(in_a_page)
    figures = monitor._figures
    keys = [key_of(report) for report in monitor.history]
    assert figures.widget.known.split() == keys
    assert f'data-gpumem="{keys[0]}"' in shown.outputs[0].data["text/html"]

    said, course = asked(figures, course=keys[0])
    assert said == {"course": keys[0]}
    assert json.loads(zlib.decompress(course))["source"][-1] == "a = 1"
    assert asked(figures, course="gone")[1] == b""
    said, module = asked(figures, module=True)
    assert "export function timeline" in zlib.decompress(module).decode()
    assert len(module) < 20_000


def test_a_figure_that_is_not_shown_is_not_offered(in_a_page):
    run(in_a_page, "%%gpumem --no-plot\na = 1")
    run(in_a_page, "%%gpumem -q\na = 1")
    assert monitor_of(in_a_page)._figures is None


def test_without_the_package_there_is_a_picture_and_nothing_is_said(in_a_page, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    shown = run(in_a_page, MAKE.format("plain"))
    assert "data-gpumem" in shown.outputs[0].data["text/html"]
    assert capsys.readouterr().err == ""


def test_unloading_takes_the_widget_away(in_a_page):
    run(in_a_page, MAKE.format("first"))
    widget = monitor_of(in_a_page)._figures.widget
    run(in_a_page, "%unload_ext gpumem_magic")
    assert widget.comm is None
