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
        (("seconds",), float("inf"), "report.seconds is inf, and lies between 0 and"),
        (("started",), float("nan"), "report.started is nan"),
        (("started",), 1e300, "report.started is 1e+300"),
        (("seconds",), 10**400, "report.seconds is 1000"),
        (("peak", "allocated"), -1, "report.peak.allocated is -1, and lies between 0 and"),
        (("device", "total"), 10**30, "report.device.total is 1000000"),
        (("lines", 1, "net"), -(10**30), "report.lines[1].net is -1000000"),
        (("cell", "number"), -3, "report.cell.number is -3"),
        (("timeline", "time", 0), float("inf"), "report.timeline.time holds a number"),
        (("timeline", "line", 0), 1 << 40, "report.timeline.line holds a number"),
        (("timeline", "line", 0), -1, "report.timeline.line holds a number"),
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


HOSTILE = (
    float("inf"),
    float("nan"),
    -1,
    -(10**30),
    10**30,
    1e300,
    10**400,
    "x",
    None,
    [],
    {},
    True,
)


def leaves(data, place=()):
    """The places of all values in plain data, but only the first of long lists."""
    items = data.items() if isinstance(data, dict) else enumerate(data[:2])
    for key, value in items:
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*place, key))


def test_what_is_loaded_can_be_shown_and_saved(story):
    text, loaded = dumps(story), 0
    for number, place in enumerate(leaves(json.loads(text))):
        for value in HOSTILE[number % 4 :: 4]:
            data = json.loads(text)
            broken(data, place, value)
            try:
                report = from_dict(data)
            except ValueError:
                continue
            loaded += 1
            assert loads(dumps(report)) == (report,), (place, value)
            assert report.text()
    assert loaded > 20
