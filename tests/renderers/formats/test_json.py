"""JSON: everything, back again, and clear words about what is broken."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from gpumem_magic.renderers.formats.json import dumps, dumps_all, from_dict, loads, to_dict
from gpumem_magic.values.report import Report

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["small", "unknown"])
def test_golden(name, reports):
    path, text = GOLDEN / f"{name}.json", json.dumps(reports[name]().to_dict(), indent=1) + "\n"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
        pytest.skip("written, not compared")
    assert text == path.read_text(encoding="utf-8")
    assert from_dict(json.loads(text)) == reports[name]()


def test_a_report_comes_back_equal(report):
    assert Report.from_dict(report.to_dict()) == report
    assert loads(dumps(report)) == (report,)
    assert loads(dumps(report))[0].text() == report.text()


def test_a_different_report_is_not_equal(story):
    data = to_dict(story)
    data["timeline"]["allocated"][5] += 512
    assert from_dict(data) != story


def test_many_reports_come_back_in_order(reports):
    many = tuple(make() for make in reports.values())
    assert loads(dumps_all(many)) == many


def test_sizes_are_exact_integers(story):
    data = json.loads(dumps(story))
    assert data["format"] == 1
    assert data["peak"]["allocated"] == story.peak.allocated
    assert data["at_peak"]["optimizer state"] == 6451 << 20
    assert type(data["timeline"]["reserved"][-1]) is int


def test_a_newer_format_says_so(story):
    data = {**to_dict(story), "format": 2}
    with pytest.raises(ValueError, match=r"newer gpumem_magic \(format 2\).*reads up to 1"):
        from_dict(data)
    with pytest.raises(ValueError, match="newer gpumem_magic"):
        loads(json.dumps({"format": 9, "reports": "whatever"}))


def broken(data, place, value):
    *path, last = place
    for key in path:
        data = data[key]
    if value is KeyError:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("name",), KeyError, "report.name is missing"),
        (("name",), 3, "report.name should be str, not int"),
        (("seconds",), "1", "report.seconds should be float, not str"),
        (("retries",), True, "report.retries should be int, not bool"),
        (("predicted",), 1, "report.predicted should be bool, not int"),
        (("peak", "allocated"), 1.5, "report.peak.allocated should be int, not float"),
        (("lines", 1, "peak"), "x", "report.lines[1].peak should be int, not str"),
        (("lines",), {}, "report.lines should be list, not dict"),
        (("device", "capability"), [7], "report.device.capability should have 2 values"),
        (("blocks", 0, "category"), "fat", "report.blocks[0].category: 'fat' is no category"),
        (("at_peak",), {"fat": 1}, "report.at_peak: 'fat' is no category"),
        (("timeline", "time"), [0.0], "report.timeline: its columns differ in length"),
        (("timeline", "allocated", 0), "a", "report.timeline.allocated should be a list of numb"),
        (("timeline", "allocated", 0), 1 << 70, "report.timeline.allocated holds a number"),
        (("timeline", "by_category", "input"), [1], "report.timeline: its columns differ"),
        (("timeline", "peak"), 10**6, "report.timeline: its columns differ"),
        (("oom", "point"), 10**6, "report.oom.point lies outside the timeline"),
        (("format",), KeyError, "it has no format number"),
    ],
)
def test_what_is_broken_is_named(place, value, said, story):
    data = json.loads(dumps(story))
    broken(data, place, value)
    with pytest.raises(ValueError, match=re.escape(said)):
        from_dict(data)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", "3", "NaN", '{"format": true}', "[" * 100_000]
)
def test_other_files_are_refused(text):
    with pytest.raises(ValueError, match=r"not JSON|not a report|no format"):
        loads(text)


def test_keys_of_a_later_version_are_passed_over(story):
    assert from_dict({**to_dict(story), "later": 1}) == story
