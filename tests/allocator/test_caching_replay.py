"""Every decision of the simulated allocator against traces that others recorded on real GPUs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "replay.py"


def _benchmark():
    spec = importlib.util.spec_from_file_location("replay_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


replay = _benchmark()
PATHS = sorted(replay.traces_folder().glob("*.json.gz"))


@pytest.mark.skipif(not PATHS, reason=f"no traces in {replay.traces_folder()}: set GPUMEM_SHARED")
def test_there_are_nine_traces():
    assert len(PATHS) == 9


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.partition(".")[0])
def test_replay_decides_as_the_real_allocator_did(path):
    # GIVEN a trace recorded on a real GPU
    trace = replay.load(path)
    segment_events = sum(event[0] in replay.SEGMENT_EVENTS for event in trace.events)
    # WHEN its allocations and frees are fed to the simulation
    outcome = replay.replay(trace)
    # THEN every address, every segment and the totals at the end are the recorded ones
    assert outcome.misses == ()
    assert outcome.segment_events == segment_events
    assert outcome.decisions == sum(event[0] == "alloc" for event in trace.events)
    assert outcome.final == trace.final


@pytest.mark.skipif(not PATHS, reason="no traces")
def test_replay_notices_a_wrong_decision():
    # GIVEN a trace in which one recorded address is moved
    trace = replay.load(PATHS[-1])
    position = next(i for i, event in enumerate(trace.events) if event[0] == "alloc")
    action, address, size, stream = trace.events[position]
    events = list(trace.events)
    events[position] = (action, address + 512, size, stream)
    changed = replay.Trace(
        trace.name, trace.torch, trace.expandable, trace.segments, tuple(events), trace.final
    )
    # THEN the replay says so
    assert any("alloc of" in miss for miss in replay.replay(changed).misses)
