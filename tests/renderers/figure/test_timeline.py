"""What is drawn, by its artists; and that drawing is the same every time, whatever the user set."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.renderers.figure.scale import LOW_WIDTH
from gpumem_magic.renderers.figure.timeline import (
    overlay_figure,
    overview_figure,
    png,
    svg,
    timeline_figure,
)
from gpumem_magic.units import GIB, MIB
from gpumem_magic.values.recording import Category


def axes_of(figure):
    (axes,) = figure.axes
    return axes


def texts(figure):
    return [text.get_text() for text in (*figure.texts, *axes_of(figure).texts)]


NARROW = 340  # pixels that a telephone has for a picture
READABLE = 7.9  # pixels of letters


@pytest.mark.parametrize("what", ["report", "comparison"])
def test_text_can_be_read_where_a_report_is_narrow(what, story):
    low = timeline_figure(story, low=True)
    figure = low if what == "report" else overlay_figure((story, story), ("1 (a)", "2 (b)"))
    figure.draw_without_rendering()
    shown = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
    assert len(shown) > 5
    assert min(text.get_size() / 72 * 100 for text in shown) * NARROW / LOW_WIDTH > READABLE
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0  # nothing is cut off
    assert (box.x1 <= width, box.y1 <= height) == (True, True)


def test_areas_stack_up_to_what_is_allocated(story):
    axes = axes_of(timeline_figure(story))
    areas = {area.get_label(): area for area in axes.collections}
    drawn = [
        kind for kind in Category if story.timeline.by_category[:, list(Category).index(kind)].any()
    ]
    assert list(areas) == [kind.value for kind in drawn]
    for kind in drawn:
        assert to_hex(areas[kind.value].get_facecolor()[0]).upper() == COLOURS[kind]
    top = max(area.get_paths()[0].vertices[:, 1].max() for area in areas.values())
    assert top == story.peak.allocated


def test_reserved_is_a_line_over_them(story):
    lines = {line.get_label(): line for line in axes_of(timeline_figure(story)).lines}
    assert np.array_equal(lines["reserved"].get_ydata()[:-1], story.timeline.reserved)


def test_a_limit_in_sight_is_a_dashed_line_at_what_is_left_for_pytorch(story):
    figure = timeline_figure(story)
    limit = story.device.total - 112 * MIB
    lines = {line.get_label(): line for line in axes_of(figure).lines}
    assert list(lines["limit"].get_ydata()) == [limit, limit]
    assert "limit 14.46 GiB" in texts(figure)


def test_the_low_picture_cuts_none_of_its_words_off(report):
    figure = timeline_figure(report, low=True)
    figure.draw_without_rendering()
    assert axes_of(figure).xaxis.label.get_window_extent().y0 >= 0


def test_a_large_cache_is_told_and_does_not_flatten_the_picture(story):
    line = replace(story.timeline, reserved=story.timeline.reserved + 40 * story.peak.allocated)
    figure = timeline_figure(replace(story, timeline=line, oom=None))
    (axes,) = figure.axes
    assert axes.get_ylim()[1] < 2 * story.peak.allocated
    assert "reserved" not in {one.get_label() for one in axes.get_lines()}
    assert any(text.startswith("reserved ") and "far above" in text for text in texts(figure))


def test_a_far_limit_is_told_and_does_not_flatten_the_picture(reports):
    figure = timeline_figure(reports["calling"]())
    assert "limit 14.46 GiB, far above" in texts(figure)
    assert axes_of(figure).get_ylim()[1] < GIB


def test_peak_is_marked_with_size_and_line(story):
    figure = timeline_figure(story)
    assert figure.texts[0].get_text() == "peak 14.20 GiB in line 7: optimizer.step()"
    (marker,) = [line for line in axes_of(figure).lines if line.get_label() == "peak"]
    assert marker.get_ydata() == [story.peak.allocated]


def test_out_of_memory_stands_on_what_was_held(story):
    figure = timeline_figure(story)
    (bar,) = [line for line in axes_of(figure).lines if line.get_label() == "out of memory"]
    held = int(story.timeline.allocated[story.oom.point])
    assert list(bar.get_ydata()) == [held, held + 620 * MIB]
    assert "out of memory: 620.00 MiB asked for" in texts(figure)


def test_without_its_moment_it_stands_on_the_highest_point_of_its_line(story):
    report = replace(story, oom=replace(story.oom, point=None, line=5))
    figure = timeline_figure(report)
    (bar,) = [line for line in axes_of(figure).lines if line.get_label() == "out of memory"]
    line = story.timeline
    assert bar.get_ydata()[0] == line.allocated[line.line == 5].max()


def test_the_strip_names_the_lines_in_order(reports):
    axes = axes_of(timeline_figure(reports["calling"]()))
    assert [patch.get_gid() for patch in axes.patches] == ["line 1", "line 3"]
    assert [t.get_text() for t in axes.texts if t.get_gid() == "line label"] == ["1", "3"]


def test_labels_of_the_strip_do_not_overlap(story):
    figure = timeline_figure(story)
    figure.canvas.draw()
    boxes = [t.get_window_extent() for t in axes_of(figure).texts if t.get_gid() == "line label"]
    assert len(boxes) >= 6
    for one, next_one in pairwise(boxes):
        assert one.x1 < next_one.x0


def test_the_same_report_gives_the_same_bytes(story):
    first, second = png(timeline_figure(story)), png(timeline_figure(story))
    assert first == second
    assert b"Software" not in first
    assert svg(timeline_figure(story)) == svg(timeline_figure(story))


def test_the_users_style_is_neither_used_nor_changed(story):
    plain = png(timeline_figure(story))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        assert png(timeline_figure(story)) == plain
        assert dict(matplotlib.rcParams) == before


def test_nothing_warns_and_no_text_is_a_formula(report):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png(timeline_figure(report))


def test_dollars_are_dollars(hostile):
    line = hostile.timeline
    report = replace(hostile, timeline=replace(line, line=np.ones_like(line.line)))
    shown = timeline_figure(report).texts[0]
    assert r"\$x_1^2\$" in shown.get_text()


def test_background_is_transparent(story):
    figure = timeline_figure(story)
    assert figure.patch.get_alpha() == 0
    assert axes_of(figure).patch.get_alpha() == 0


def test_a_figure_shows_itself_without_pyplot(story):
    assert timeline_figure(story)._repr_png_().startswith(b"\x89PNG")


def test_pyplot_is_never_loaded():
    module = "gpumem_magic.renderers.figure.timeline"
    probe = f"import sys, {module}; print('matplotlib.pyplot' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_overview_has_a_bar_for_each_report(reports):
    three = [reports[name]() for name in ("story", "calling", "unknown")]
    figure = overview_figure(three)
    axes = axes_of(figure)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["1  train", r"2  In[3]", "3  In[3]"]
    ends = [max(b.get_x() + b.get_width() for b in c.patches[:1]) for c in axes.containers]
    assert max(ends) == three[0].peak.allocated
    assert " unknown" in texts(figure)
    assert " 14.20 GiB, out of memory" in texts(figure)
    assert png(figure) == png(overview_figure(three))


def test_bytes_of_unknown_kind_are_drawn_as_such(story):
    axes = axes_of(overview_figure([replace(story, at_peak={})]))
    assert [c.get_label() for c in axes.containers] == ["kind unknown"]


def test_overview_of_nothing():
    with pytest.raises(ValueError, match="nothing was measured yet"):
        overview_figure([])
