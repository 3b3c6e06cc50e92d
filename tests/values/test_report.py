"""build_report: what was recorded and what it means, in one value."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpumem_magic.pipeline import build_report
from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import (
    Cell,
    Device,
    Events,
    Frame,
    LiveBlocks,
    Reading,
    Recording,
)

FOR_ADVICE = (
    "survivors",
    "lifetimes",
    "machine",
    "growth",
    "enlarged",
    "left_over",
    "fits",
    "evaluations",
)
"""What a trace has for the next cell, and for those who give advice."""


@pytest.fixture
def recording():
    """One line allocates 1024 bytes in a segment of 2048 and frees half of them."""
    size = np.array([2048, 512, 512, 512], np.int64)
    none = np.zeros(0, np.int64)
    return Recording(
        device=Device("Tesla T4", 0, 1 << 20, (7, 5), False),
        cell=Cell("x = f()\n", "<cell>", 4),
        started=5.0,
        seconds=1.5,
        before=Reading(0, 0, 300, 100),
        after=Reading(512, 2048, 5000, 2448),
        events=Events(
            action=np.array([3, 0, 0, 1], np.int8),
            address=np.array([0, 0, 512, 512], np.int64),
            size=size,
            requested=size,
            stack=np.zeros(4, np.int32),
            phase=np.zeros(4, np.int8),
            time=np.arange(4.0),
        ),
        stacks=((Frame("<cell>", 1, "<module>"),),),
        initial=LiveBlocks(none, none, none),
        retries=3,
        error="ValueError",
        predicted=True,
        notes=("a note",),
    )


def report_of(recording, **changes):
    changed = dataclasses.replace(recording, **changes)
    return build_report(changed, build_trace(changed), "a name")


def test_a_report_has_what_was_recorded_and_what_it_means(recording):
    report, trace = report_of(recording), build_trace(recording)
    assert report.name == "a name"
    for name in ("cell", "device", "predicted", "started", "seconds", "retries", "error", "notes"):
        assert getattr(report, name) == getattr(recording, name)
    for field in dataclasses.fields(trace):
        if field.name in FOR_ADVICE:
            continue
        assert getattr(report, field.name) == getattr(trace, field.name)
    assert (report.peak.allocated, report.peak.reserved) == (1024, 2048)
    assert report.unknown == {}


def test_what_the_device_uses_adds_up(recording):
    report = report_of(recording)
    assert (report.context, report.others) == (400, 2552)
    assert report.after.reserved + report.context + report.others == report.after.device_used


def test_what_is_not_known_says_why(recording):
    reasons = {"process_used": "not in a container", "device_used": "no driver"}
    before = Reading(None, 0, None, None, {"device_used": "no driver yet"})
    after = Reading(512, 2048, None, None, reasons)
    report = report_of(recording, before=before, after=after)
    assert (report.context, report.others) == (None, None)
    assert (report.before.allocated, report.after.device_used) == (None, None)
    assert report.unknown == {
        "before.allocated": "allocated was not read",
        "before.device_used": "no driver yet",
        "after.device_used": "no driver",
        "peak.device_used": "no driver yet",
        "context": "not in a container",
        "others": "no driver",
    }


def test_the_share_of_this_process_alone_leaves_the_others_unknown(recording):
    after = Reading(512, 2048, None, 2448, {"device_used": "no driver"})
    report = report_of(recording, after=after)
    assert (report.context, report.others) == (400, None)
    assert report.unknown["others"] == "no driver"
    assert "context" not in report.unknown
