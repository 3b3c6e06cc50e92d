from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.sources.cuda.history import (
    EntryColumns,
    build_columns,
    count_changes,
    live_blocks,
    newest,
    paint,
    parse_rules,
    parse_segments,
    rows_by_changes,
)
from gpumem_magic.sources.cuda.regions import PACKAGE, Span
from gpumem_magic.values.recording import Action, Frame, Phase, Rules

MIB = 1 << 20
CELL = {"filename": "<cell>", "line": 3, "name": "<module>"}
TORCH = {"filename": "torch/nn/linear.py", "line": 9, "name": "forward"}


def entry(action, addr=0, size=512, time=0.0, frames=(CELL,)):
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": round(time * 1e6),
        "frames": list(frames),
    }


def tensor(addr, size=512, time=0.0, frames=(CELL,)):
    """A block that is handed out and taken back."""
    return [
        entry("alloc", addr, size, time, frames),
        entry("free_requested", addr, size, time, frames),
        entry("free_completed", addr, size, time, frames),
    ]


def columns_of(trace, seconds=1.0):
    return build_columns(EntryColumns(trace), (), Rules(), 0.0, seconds)


def test_columns_hold_whole_blocks_and_what_was_requested():
    trace = [entry("segment_alloc", 0, 2 * MIB, 0.25), *tensor(0, 700, 0.5), entry("snapshot")]
    events = columns_of(trace).events
    assert events.action.tolist() == [3, 0, 1, 2]
    assert events.size.tolist() == [2 * MIB, 1024, 1024, 1024]
    assert events.requested.tolist() == [2 * MIB, 700, 700, 700]
    assert events.time.tolist() == [0.25, 0.5, 0.5, 0.5]


def test_times_stay_within_the_recording():
    for told, shown in ((99.0, 0), (103.0, 1)):
        entries = EntryColumns(tensor(0, time=told))
        events = build_columns(entries, (), Rules(), 100.0, 1.0).events
        assert events.time.tolist() == [shown] * 3


def test_without_times_only_the_order_is_known():
    trace = [{k: v for k, v in e.items() if k != "time_us"} for e in tensor(0)]
    assert columns_of(trace).events.time.tolist() == [0, 0.5, 1]


def test_equal_stacks_get_one_number():
    other = dict(CELL)
    trace = [
        *tensor(0, frames=(TORCH, CELL)),
        *tensor(0, frames=(TORCH, other)),
        *tensor(0, frames=()),
    ]
    columns = columns_of(trace)
    assert columns.stacks == (
        (Frame("torch/nn/linear.py", 9, "forward"), Frame("<cell>", 3, "<module>")),
    )
    assert columns.events.stack.tolist() == [0] * 6 + [-1] * 3


COMPILED = ["", "??", "/pytorch/aten/src/ATen/native/Linear.cpp", "/lib/libpython3.11.so.1.0"]


@pytest.mark.parametrize("filename", [*COMPILED, "/usr/bin/python3.11", f"{PACKAGE}/x.py"])
def test_frames_that_are_not_the_users_are_dropped(filename):
    hidden = {"filename": filename, "line": 1, "name": "f"}
    assert columns_of(tensor(0, frames=(hidden, CELL))).stacks == (
        (Frame("<cell>", 3, "<module>"),),
    )


def test_newest_takes_as_many_changes_as_the_counters_tell():
    old, new = tensor(0, time=1.0), tensor(512, time=9.0)
    assert newest([*old, *new], 2, since=5.0) == new
    assert newest([*old, *new], 4, since=0.5) == [*old, *new]
    assert count_changes([*old, *new]) == 4


def test_newest_keeps_a_segment_that_came_first_and_drops_older_ones():
    old = [
        *tensor(0, time=1.0),
        entry("segment_free", 0, 2 * MIB, 2.0),
        entry("snapshot", time=5.0),
    ]
    new = [entry("segment_alloc", 0, 2 * MIB, 6.0), *tensor(0, time=6.0)]
    assert newest([*old, *new], 2, since=5.5) == new


def test_newest_without_changes_keeps_what_was_released():
    old = tensor(0, time=1.0)
    new = [entry("segment_free", 0, 2 * MIB, 6.0)]
    assert newest([*old, *new], 0, since=5.0) == new
    assert newest(old, 0, since=5.0) == []


def test_newest_without_times_stops_at_the_mark_of_our_snapshot():
    def bare(trace):
        return [{k: v for k, v in e.items() if k != "time_us"} for e in trace]

    old = bare([*tensor(0), entry("segment_free", 0, 2 * MIB), entry("snapshot")])
    new = bare([entry("segment_alloc", 0, 2 * MIB), *tensor(0)])
    assert newest([*old, *new], 2, since=5.0) == new


def test_segments_of_one_device_with_their_blocks():
    first = {
        "address": 4096,
        "total_size": 2 * MIB,
        "device": 0,
        "is_expandable": True,
        "blocks": [
            {"size": 1024, "requested_size": 700, "state": "active_allocated"},
            {"size": 512, "requested_size": 512, "state": "active_awaiting_free"},
            {"size": 2 * MIB - 1536, "requested_size": 0, "state": "inactive"},
        ],
    }
    (segment,) = parse_segments([first, {**first, "device": 1}], 0)
    assert segment.expandable
    assert [b.address for b in segment.blocks] == [4096, 5120, 5632]
    assert [(b.used, b.allocated) for b in segment.blocks] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    live = live_blocks([segment])
    assert (live.address.tolist(), live.size.tolist(), live.requested.tolist()) == (
        [4096],
        [1024],
        [700],
    )


def test_rules_from_settings():
    assert parse_rules({}) == Rules()
    settings = {"max_split_size": 64 * MIB, "roundup_power2_divisions": {"2": 8, "1": 4, "16": 1}}
    assert parse_rules(settings) == Rules(64 * MIB, (4, 8, 1, *(0,) * 13))
    assert parse_rules({"max_split_size": (1 << 64) - 1}).max_split_size is None


def test_rows_by_changes_end_after_the_completion_of_a_free():
    trace = [entry("segment_alloc", 0, 2 * MIB), *tensor(0), *tensor(0)]
    assert rows_by_changes(columns_of(trace).events.action).tolist() == [0, 2, 4, 5, 7]


def test_backward_gives_its_stack_to_events_that_have_none():
    caller = (Frame("torch/_tensor.py", 5, "backward"), Frame("<cell>", 7, "<module>"))
    hook = {"filename": "<cell>", "line": 2, "name": "hook"}
    trace = [*tensor(0), *tensor(0, frames=()), *tensor(0, frames=(hook,)), *tensor(0)]
    columns = paint(columns_of(trace), [Span(Phase.BACKWARD, 3, 9, caller)])
    stacks = [columns.stacks[i] for i in columns.events.stack]
    assert stacks[3:6] == [caller] * 3
    assert stacks[6:9] == [(Frame("<cell>", 2, "hook"), *caller)] * 3
    assert stacks[0] == stacks[9] == (Frame("<cell>", 3, "<module>"),)
    assert columns.events.phase.tolist() == [0] * 3 + [Phase.BACKWARD] * 6 + [0] * 3


def test_frees_without_stacks_of_their_own_are_the_backward_passes():
    caller = (Frame("torch/_tensor.py", 5, "backward"), Frame("<cell>", 7, "<module>"))
    trace = [*tensor(0), *tensor(0)]  # each free with the stack of its allocation
    columns = paint(columns_of(trace), [Span(Phase.BACKWARD, 3, 6, caller)], own_frees=False)
    stacks = [columns.stacks[i] for i in columns.events.stack]
    own = (Frame("<cell>", 3, "<module>"),)
    assert stacks == [*[own] * 4, caller, caller]


def test_a_step_that_never_ended_takes_only_what_ran_inside_it():
    # GIVEN a span that was left open by an error, and later events of the cell itself
    inside = [{"filename": "torch/adam.py", "line": 1, "name": "step"}, CELL]
    span = Span(
        Phase.OPTIMIZER, 0, 6, (Frame("wrapper.py", 4, "wrapper"), Frame("<cell>", 3, "<module>"))
    )
    later = {"filename": "<cell>", "line": 8, "name": "<module>"}
    trace = [*tensor(0, frames=inside), *tensor(0, frames=(later,))]
    assert paint(columns_of(trace), [span]).events.phase.tolist() == [Phase.OPTIMIZER] * 3 + [0] * 3


def test_inner_spans_win():
    spans = [Span(Phase.BACKWARD, 0, 9, ()), Span(Phase.OPTIMIZER, 3, 6, (Frame("a", 1, "b"),))]
    phase = paint(columns_of([*tensor(0), *tensor(0), *tensor(0)]), spans).events.phase
    assert np.unique(phase[3:6]).tolist() == [Phase.OPTIMIZER]
    assert np.unique(np.delete(phase, slice(3, 6))).tolist() == [Phase.BACKWARD]


def test_the_history_of_a_failure():
    failed = {**entry("oom", size=4 * MIB), "device_free": 123}
    columns = columns_of([entry("segment_alloc", 0, 2 * MIB), failed])
    assert columns.device_free == 123
    assert columns.free_at_oom == (2 * MIB, 2 * MIB)
    assert columns.events.action.tolist() == [Action.SEGMENT_ALLOC, Action.OOM]
