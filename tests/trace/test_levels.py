"""Levels, peaks and the readings they hang on."""

from __future__ import annotations

from gpumem_magic.trace import build_trace
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Reading

MIB = 1 << 20


def small(script):
    """20 MiB reserved twice, one given back before the second: peaks at different moments."""
    s = script()
    at = s.segment(20 * MIB)
    s.alloc("a", 8 * MIB, 1)
    s.free("a", 1)
    s.segment(40 * MIB)
    s.segment(-20 * MIB, at=at)
    s.alloc("b", 4 * MIB, 1)
    return s


def test_the_peak_is_the_highest_of_each_size(script):
    trace = build_trace(small(script).recording())
    assert (trace.before, trace.after) == (Level(0, 0, None), Level(4 * MIB, 40 * MIB, None))
    assert trace.peak == Level(8 * MIB, 60 * MIB, None)
    assert trace.unknown["peak.device_used"]


def test_the_start_can_be_the_peak(script):
    s = script()
    s.initial("old", 4096)
    s.free("old", 1)
    s.alloc("a", 512, 1)
    trace = build_trace(s.recording())
    assert trace.peak.allocated == 4096
    assert [(block.size, block.line) for block in trace.blocks] == [(4096, None)]
    assert trace.timeline.peak == 0


def test_device_used_at_the_peak_adds_the_most_that_others_took(script):
    recording = small(script).recording(
        before=Reading(0, 0, 100 * MIB, None), after=Reading(4 * MIB, 40 * MIB, 150 * MIB, None)
    )
    assert build_trace(recording).peak.device_used == (60 + 110) * MIB


def test_device_used_cannot_exceed_the_device(script):
    recording = small(script).recording(before=Reading(0, 0, (16 << 30) - MIB, None))
    assert build_trace(recording).peak.device_used == 16 << 30


def test_one_reading_is_enough_for_the_levels(script):
    whole = small(script).recording()
    nothing = Reading(None, None, None, None, {"reserved": "not asked", "device_used": "no NVML"})
    first, last = (
        build_trace(small(script).recording(**{moment: nothing})) for moment in ("before", "after")
    )
    assert first.peak == last.peak == build_trace(whole).peak
    assert first.unknown["peak.device_used"] == "no NVML"


def test_reserved_is_unknown_where_no_reading_has_it(script):
    nothing = Reading(None, None, None, None, {"reserved": "not asked"})
    trace = build_trace(small(script).recording(before=nothing, after=nothing))
    assert trace.peak == Level(8 * MIB, None, None)
    assert trace.unknown["peak.reserved"] == "not asked"


def test_initial_blocks_tell_the_start_where_readings_do_not(script):
    s = script()
    s.initial("old", 4096)
    s.alloc("a", 512, 1)
    nothing = Reading(None, None, None, None)
    trace = build_trace(s.recording(before=nothing, after=nothing))
    assert trace.peak.allocated == 4608


def test_what_the_counters_know_and_no_block_explains_is_other(script):
    s = script()
    s.alloc("a", 512, 1)
    recording = s.recording(before=Reading(8192, 0, None, None), after=Reading(8704, 0, None, None))
    trace = build_trace(recording)
    assert [(c.value, size) for c, size in trace.at_peak.items()] == [("other", 8704)]


def test_events_that_do_not_add_up_are_told(script):
    s = script()
    s.alloc("a", 512, 1)
    trace = build_trace(s.recording(after=Reading(2560, 0, None, None)))
    assert trace.unknown["lines"] == "+2.00 KiB happened without an event"


def test_an_incomplete_recording_counts_by_its_readings_alone(script):
    s = small(script)
    s.live["unseen"] = (512, 512)
    s.free("unseen", 1)
    trace = build_trace(s.recording(complete=False, dropped=1234))
    assert trace.before == Level(0, 0, None)
    assert trace.after.reserved == 40 * MIB
    assert trace.peak == Level(None, None, None)
    assert (trace.lines, trace.blocks, trace.at_peak, trace.at_end) == ((), (), {}, {})
    assert (len(trace.timeline.time), trace.timeline.peak) == (0, -1)
    assert trace.unknown["peak.allocated"].startswith("1,234 events were lost")


def test_a_cell_without_events(script):
    s = script("x = 1\n")
    s.initial("old", 512)
    trace = build_trace(s.recording())
    assert trace.peak.allocated == 512
    assert trace.lines == ()
    assert len(trace.timeline.time) == 1


def test_a_recording_without_events_says_that_there_were_none(script):
    trace = build_trace(script().recording(complete=False, dropped=None))
    assert trace.peak.allocated is None
    assert trace.unknown["lines"] == "PyTorch recorded none of the cell's events"
