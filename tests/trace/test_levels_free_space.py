"""Gaps between living blocks, and segments in which none lives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem_magic.trace.levels import find_held_segments, find_levels
from gpumem_magic.trace.pairing import pair_events

MIB = 1 << 20


def room_of(recording):
    return find_held_segments(recording, find_levels(recording), len(recording.events))


def measured(recording):
    lives = pair_events(recording.events, recording.initial)
    alive = lives.alive(len(recording.events) - 1)
    room = room_of(recording)
    return room.largest_gap(lives, alive), room.empty(lives, alive)


def test_gaps_are_inside_segments_and_empty_segments_have_none_alive(script):
    s = script()
    first, second = s.segment(20 * MIB), s.segment(20 * MIB)
    s.alloc("a", 6 * MIB, at=first + 6 * MIB)
    s.alloc("b", 2 * MIB, at=second)
    s.free("b")
    assert measured(s.recording()) == (20 * MIB, 20 * MIB)
    s.alloc("c", MIB, at=second + 9 * MIB)
    assert measured(s.recording()) == (10 * MIB, 0)


def test_older_segments_count_where_the_source_told_them(script):
    s = script()
    s.initial("old", 4 * MIB)
    address = s.live["old"][0]
    s.start = (4 * MIB, 20 * MIB)
    recording = s.recording()
    assert room_of(recording) is None
    rows = np.array([(address - 8 * MIB, 20 * MIB, 0)], np.int64)
    recording = replace(recording, initial=replace(recording.initial, segments=rows))
    assert measured(recording) == (8 * MIB, 0)


def test_an_incomplete_recording_has_no_room_that_is_known(script):
    assert room_of(replace(script().recording(), complete=False)) is None
