"""Snapshots of every version of torch from 2.0 on: peaks equal to what torch itself counted."""

from __future__ import annotations

import copy
import gzip
import pickle
from itertools import accumulate
from pathlib import Path

import pytest

from gpumem_magic import load_snapshot
from gpumem_magic.pipeline import analyse
from gpumem_magic.renderers.formats.snapshot import to_pickle
from gpumem_magic.snapshots.recordings import recordings
from gpumem_magic.values.recording import Category

FILES = sorted((Path(__file__).parent / "recorded").glob("*.pickle.gz"))
"""Real ones, see `recorded/record.py`."""


def plain(path):
    return pickle.loads(gzip.decompress(path.read_bytes()))


def highest(trace, grows, shrinks, after):
    """The highest level on the way to `after`, straight from the entries."""
    changes = [
        entry["size"] * ((entry["action"] in grows) - (entry["action"] in shrinks))
        for entry in trace
    ]
    return max(accumulate(changes, initial=after - sum(changes)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_levels_are_those_of_torchs_counters(path):
    (report,) = load_snapshot(path)
    told = {
        f"{moment}.{size}": getattr(getattr(report, moment), size)
        for moment in ("peak", "after")
        for size in ("allocated", "reserved")
    }
    assert told == plain(path)["counters"]
    assert report.oom.requested == 20 << 30
    assert [line.number for line in report.lines] == [21, 24, 25, 26, 27, 28, 29, 31]
    for kind in (Category.PARAMETER, Category.OPTIMIZER_STATE):
        factor = 1 if kind is Category.PARAMETER else 2
        assert report.at_end[kind] == factor * 4 * (1024 * 1024 + 1024 + 1024 * 8 + 128)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_peaks_are_those_of_an_independent_count(path):
    snapshot = plain(path)
    (trace,), segments = snapshot["device_traces"], snapshot["segments"]
    (report,) = load_snapshot(path)
    grows, shrinks = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
    held = sum(segment["total_size"] for segment in segments)
    assert highest(trace, grows, shrinks, held) == report.peak.reserved
    asked = sum(
        block["requested_size"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    events = report.basis.recording.events
    sign = (events.action == 0).astype(int) - (events.action == 1)
    levels = asked - (sign * events.requested).sum() + (sign * events.requested).cumsum()
    assert highest(trace, ("alloc",), ("free_requested",), asked) == levels.max()


def without(*names):
    """Takes keys out of every entry, block and segment."""

    def older(snapshot):
        traces, segments = snapshot["device_traces"], snapshot["segments"]
        blocks = [block for segment in segments for block in segment["blocks"]]
        for one in [*(entry for trace in traces for entry in trace), *blocks, *segments, snapshot]:
            for name in names:
                one.pop(name, None)
        return snapshot

    return older


def with_history(snapshot):
    """Blocks as torch 2.0 has them: what was asked for stands in a list of their history."""
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            address, asked = block.pop("address"), block.pop("requested_size")
            if block["state"] != "inactive":
                block["history"] = [{"addr": address, "real_size": asked, "frames": []}]
    return without("time_us", "is_expandable", "allocator_settings", *NEW)(snapshot)


NEW = ("user_metadata", "compile_context", "segment_pool_id", "external_annotations", "pool_id")
VERSIONS = {
    "2.0": with_history,
    "2.1": without("time_us", "is_expandable", *NEW),
    "2.2, without C++": without("is_expandable", *NEW),
    "2.4": without(*NEW),
    "2.6": without("user_metadata", "segment_pool_id", "pool_id"),
}
"""What a snapshot of today loses on its way back to older versions of torch."""


@pytest.mark.parametrize("version", VERSIONS)
def test_older_versions_tell_the_same_levels(version):
    today = plain(next(path for path in FILES if path.name == "torch-2.11.pickle.gz"))
    (expected,) = recordings(copy.deepcopy(today))
    (found,) = recordings(VERSIONS[version](today))
    first, second = analyse(expected).report, analyse(found).report
    assert (first.before, first.peak, first.after) == (second.before, second.peak, second.after)
    assert [line.net for line in first.lines] == [line.net for line in second.lines]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_history_that_lost_its_beginning_is_written_and_read_the_same(path):
    whole = plain(path)
    for lost in range(0, len(whole["device_traces"][0]), 40):
        cut = whole | {"device_traces": [whole["device_traces"][0][lost:]]}
        first = analyse(recordings(cut)[0], advised=False).report
        again = analyse(recordings(pickle.loads(to_pickle(first)))[0], advised=False).report
        assert first.after.allocated == whole["counters"]["after.allocated"]
        assert "lines" not in first.unknown  # the events lead from before to after
        assert (again.before, again.peak, again.after) == (first.before, first.peak, first.after)
