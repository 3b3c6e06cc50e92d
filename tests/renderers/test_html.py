"""Golden HTML, and what JupyterLab's sanitizer, a screen reader and hostile text ask of it."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpumem_magic.renderers import mimebundle
from gpumem_magic.renderers.formats.files import page
from gpumem_magic.units import format_size
from gpumem_magic.values.findings import Block, Line
from gpumem_magic.values.recording import Category

GOLDEN = Path(__file__).parent / "golden"

# What JupyterLab leaves in a notebook that is not trusted, of the things that we might use.
TAGS = {
    *("div", "span", "strong", "code", "details", "summary", "img", "pre"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"style", "title", "scope", "dir", "src", "alt", "colspan"}
LOST = {"data-gpumem"}  # without it a figure is a picture


def report_html(report, plot=True):
    return mimebundle(report, plot)["text/html"]


class Elements(HTMLParser):
    """Collects tags, attributes and text, and sees to it that tags nest."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize("name", ["story", "unknown", "calling", "hostile", "unfit", "raised"])
def test_golden(name, reports):
    path, text = GOLDEN / f"{name}.html", report_html(reports[name](), plot=False) + "\n"
    text = text.replace("><", ">\n<")  # for people who read the difference
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
        pytest.skip("written, not compared")
    assert text == path.read_text(encoding="utf-8")


def test_only_what_a_sanitizer_leaves(report):
    found = Elements(report_html(report))
    assert set(found.tags) <= TAGS
    assert {name for _, name, _ in found.attributes} <= ATTRIBUTES | LOST


def test_the_look_does_not_depend_on_theme_variables(report):
    """A sanitizer drops var(): it may only repeat the colour that the text has around it."""
    declared = re.findall(r"([\w-]+):([^;\"]*var\([^;\"]*)", report_html(report, plot=False))
    assert [name for name, _ in declared] == ["color"]


def test_tables_have_captions_and_headings(report):
    found = Elements(report_html(report, plot=False))
    assert found.tags.count("caption") == found.tags.count("table")
    scopes = [value for tag, name, value in found.attributes if name == "scope"]
    assert len(scopes) == found.tags.count("th")


def test_hostile_text_stays_text(hostile):
    for text, own in ((report_html(hostile), 0), (page([hostile], hostile.name), 1)):
        found = Elements(text)
        assert found.tags.count("script") == own  # what makes the timeline of a page answer
        assert not [name for _, name, _ in found.attributes if name.startswith("on")]
        assert [tag for tag in found.tags if tag == "img"] == ["img"]
        words = "".join(found.words)
        assert "</code><script>alert('1')</script>" in words
        assert "&amp;" in words  # as the user wrote it
        assert "\u202e" not in words
        assert "\x1b" not in text


def test_every_line_is_there_the_small_ones_folded(reports):
    lines = tuple(Line(n, f"line_{n}()", n * 512, 0, n * 512, None, 1) for n in range(1, 141))
    cut = report_html(replace(reports["story"](), lines=lines), plot=False)
    assert "125 lines that moved less; the first 100 here, all in report.lines" in cut
    text = report_html(replace(reports["story"](), lines=lines[:40]), plot=False)
    assert all(f"line_{n}()" in text for n in range(1, 41))
    folded = text[text.rindex("<details") :]
    assert "line_25()" in folded
    assert "line_26()" not in folded
    assert "25 lines that moved less" in text


def test_many_blocks_are_cut_where_it_is_said(reports):
    names = [f"{a}{b}" for a in "abcdefghijklmno" for b in "abcdefghij"]
    blocks = tuple(Block(name, 99 << 20, None, None, Category.INPUT, 1) for name in names)
    text = report_html(replace(reports["story"](), blocks=blocks), plot=False)
    assert "138 smaller; the first 100 here, all in report.blocks" in text
    assert f">{names[111]}<" in text
    assert f">{names[112]}<" not in text
    assert "the first 100" not in report_html(replace(reports["story"](), blocks=blocks[:112]))


def test_the_figure_is_an_image_with_words_for_those_who_do_not_see_it(story):
    found = Elements(report_html(story))
    values = {name: value for tag, name, value in found.attributes if tag == "img"}
    head, data = values["src"].split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")
    assert "peak 14.20 GiB in line 7: optimizer.step()" in values["alt"]
    assert "optimizer state 6.30 GiB" in values["alt"]


def test_one_copy_of_the_figure(story):
    bundle = mimebundle(story)
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/html"].count("data:image/png") == 1
    assert "data:image" not in mimebundle(story, plot=False)["text/html"]
    assert bundle["text/plain"] == story.text()


def test_no_figure_of_nothing(reports):
    assert "<img" not in report_html(reports["empty"]())


def test_bars_have_the_share_as_their_width(story):
    text = report_html(story, plot=False)
    share = 100 * story.peak.allocated / story.device.total
    assert f'title="allocated 14.20 GiB" style="width:{share:.2f}%' in text


def test_page_stands_alone(story):
    text = page([story, story], "two <cells>")
    found = Elements(text)
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>two &lt;cells&gt;</title>" in text
    assert found.tags.count("article") == 2
    outside = [v for _, name, v in found.attributes if name in ("src", "href")]
    assert all(value.startswith("data:") for value in outside)
    assert "prefers-color-scheme: dark" in text


def test_page_of_nothing():
    assert "Nothing was measured." in page([])


def test_where_memory_ran_out_the_bar_shows_what_the_error_says_was_free(story):
    html = story._repr_mimebundle_()["text/html"].replace("\xa0", " ")
    assert f"free {format_size(story.oom.device_free)}" in html
    assert story.oom.device_free != story.free_at_peak
