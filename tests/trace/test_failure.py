from __future__ import annotations

import pytest

from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Category

MIB = 1 << 20


def crowded(script):
    """A segment of 20 MiB: 6 MiB free, 2 taken, 9 free, 3 taken; and 2 MiB of which 1 is free."""
    s = script("a = f()\nb = g()\n")
    large = s.segment(20 * MIB, 1)
    s.alloc("gone", 6 * MIB, 1, at=large)
    s.alloc("a", 2 * MIB, 1, at=large + 6 * MIB)
    s.alloc("b", 3 * MIB, 1, at=large + 17 * MIB)
    small = s.segment(2 * MIB, 1, at=large + 20 * MIB)
    s.alloc("c", MIB, 1, at=small)
    s.free("gone", 1)
    return s


@pytest.mark.parametrize(
    ("requested", "fragmented"),
    [(9 * MIB, False), (10 * MIB, True), (17 * MIB, True), (18 * MIB, False)],
)
def test_free_pieces_are_measured_from_the_events(script, requested, fragmented):
    s = crowded(script)
    s.fail(requested, 2, op="aten.addmm", segment=20 * MIB, device_free=MIB)
    oom = build_trace(s.recording(error="OutOfMemoryError")).oom
    assert oom is not None
    assert (oom.reserved_free, oom.largest_free) == (16 * MIB, 9 * MIB)
    assert oom.fragmented is fragmented
    assert (oom.requested, oom.segment, oom.device_free) == (requested, 20 * MIB, MIB)
    assert (oom.line, oom.op) == (2, "aten.addmm")


def test_segments_that_touch_do_not_make_one_piece(script):
    s = script()
    first = s.segment(2 * MIB)
    s.segment(2 * MIB, at=first + 2 * MIB)
    s.fail(3 * MIB)
    oom = build_trace(s.recording()).oom
    assert oom is not None
    assert (oom.reserved_free, oom.largest_free, oom.fragmented) == (4 * MIB, 2 * MIB, True)


def test_a_segment_given_back_is_not_free_memory(script):
    s = script()
    at = s.segment(20 * MIB)
    s.segment(-20 * MIB, at=at)
    s.fail(MIB)
    oom = build_trace(s.recording()).oom
    assert oom is not None
    assert (oom.reserved_free, oom.largest_free, oom.fragmented) == (0, 0, False)


def test_what_the_source_saw_comes_first(script):
    s = crowded(script)
    s.fail(10 * MIB, 2, reserved_free=30 * MIB, largest_free=7 * MIB)
    oom = build_trace(s.recording()).oom
    assert oom is not None
    assert (oom.reserved_free, oom.largest_free, oom.fragmented) == (30 * MIB, 7 * MIB, True)


def test_pieces_of_older_segments_are_unknown(script):
    s = crowded(script)
    s.start = (0, 40 * MIB)
    s.reserved += 40 * MIB
    s.fail(10 * MIB)
    oom = build_trace(s.recording()).oom
    assert oom is not None
    assert (oom.reserved_free, oom.largest_free, oom.fragmented) == (56 * MIB, None, None)
    assert oom.line is None


def test_what_was_held_when_memory_ran_out(script):
    s = crowded(script)
    s.label("a", Category.PARAMETER)
    s.fail(10 * MIB, 2)
    s.free("a", 2)
    trace = build_trace(s.recording())
    assert trace.oom is not None
    assert trace.oom.held == {Category.PARAMETER: 2 * MIB, Category.OTHER: 4 * MIB}
    assert trace.oom.point is not None
    assert trace.timeline.allocated[trace.oom.point] == 6 * MIB


def test_a_failure_of_an_incomplete_recording_says_only_what_the_source_saw(script):
    s = crowded(script)
    s.fail(10 * MIB, 2)
    oom = build_trace(s.recording(complete=False)).oom
    assert oom is not None
    assert (oom.line, oom.reserved_free, oom.largest_free, oom.fragmented) == (2, None, None, None)
    assert (oom.held, oom.point) == ({}, None)


def test_no_failure_no_finding(script):
    assert build_trace(crowded(script).recording()).oom is None
