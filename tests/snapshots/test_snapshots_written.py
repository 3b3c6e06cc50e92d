"""Reports as PyTorch's snapshots: what was written is read again, by us and by PyTorch's tools."""

from __future__ import annotations

import json
import pickle
import pickletools
import sys
from dataclasses import replace

import numpy as np
import pytest

from gpumem_magic import load_snapshot, predict
from gpumem_magic.devices import choose_source
from gpumem_magic.history import KEPT, History
from gpumem_magic.pipeline import analyse
from gpumem_magic.values.recording import Action, Cell
from gpumem_magic.values.report import Report

torch = pytest.importorskip("torch")

CODE = """\
import torch
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
net = net.to("cuda")
optimizer = torch.optim.Adam(net.parameters())
for step in range(2):
    x = torch.randn(64, 512, device="cuda")
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
parts = [torch.empty(size * 100_000, device="cuda") for size in range(1, 30)]
del parts[::2], x, held
torch.cuda.empty_cache()
"""
OLDER = """\
import torch
held = torch.ones(1000, 1000, device="cuda")
stays = torch.ones(5_000_000, device="cuda")
"""
SETTINGS = ["", "expandable_segments:True", "roundup_power2_divisions:4,max_split_size_mb:32"]


def measured(*cells):
    """The report of the last of some cells on one virtual card."""
    source, names = choose_source("T4"), {}
    source.enter()
    try:
        for text in cells:
            source.start(lambda: names, sys._getframe())
            error = None
            try:
                exec(compile(text, "train.py", "exec"), names)
            except torch.OutOfMemoryError as caught:
                error = caught
            (recording,) = source.stop(Cell(text, "train.py"), {}, error)
        return analyse(recording, "a cell").report
    finally:
        names.clear()
        source.leave()
        source.close()


def report_of(way):
    return measured(OLDER, CODE) if way == "measured" else predict(OLDER + CODE, {}, "T4")


@pytest.fixture(scope="module")
def report():
    return measured(OLDER, CODE)


@pytest.fixture
def snapshot(report, tmp_path):
    """What a saved report holds for whoever reads the file."""
    report.save(tmp_path / "some.pickle")
    return pickle.loads((tmp_path / "some.pickle").read_bytes())


def sizes_of(report):
    levels = [(r.allocated, r.reserved) for r in (report.before, report.peak, report.after)]
    events = report.basis.recording.events
    kept = events.action != Action.FREE_COMPLETED  # the virtual GPU has none
    names = ("action", "address", "size", "requested")
    return levels, np.stack([getattr(events, name)[kept].astype(np.int64) for name in names])


@pytest.mark.parametrize("way", ["measured", "predicted"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_what_was_written_reads_back_the_same(way, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    report = report_of(way)
    report.save(tmp_path / "x.pickle")
    (again,) = load_snapshot(tmp_path / "x.pickle")
    (levels, events), (levels_again, events_again) = sizes_of(report), sizes_of(again)
    assert levels == levels_again
    assert np.array_equal(events, events_again)
    assert again.cell.filename == report.cell.filename
    assert [line.net for line in again.lines] == [line.net for line in report.lines]
    if way == "predicted":  # a snapshot does not tell what older memory is
        assert (again.at_peak, again.at_end) == (report.at_peak, report.at_end)
    named = [block.name for block in report.blocks if block.name and block.line is not None]
    assert {"net[0].weight", "parts[1]"} < set(named) <= {block.name for block in again.blocks}


def test_going_back_from_the_segments_finds_what_was_there_before(report, snapshot):
    # GIVEN what a viewer starts from: the blocks after the last event
    blocks, held = {}, {}
    for segment in snapshot["segments"]:
        at = segment["address"]
        held[at] = segment["total_size"]
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
            if block["state"] == "active_allocated":
                blocks[block["address"]] = block["requested_size"]
    assert sum(held.values()) == report.after.reserved
    # WHEN every entry is undone, the last first
    freed = {}
    for entry in reversed(snapshot["device_traces"][0]):
        action, at, size = entry["action"], entry["addr"], entry["size"]
        if action == "alloc":
            assert blocks.pop(at) == size
        elif action == "free_completed":
            assert at not in blocks
            freed[at] = size
        elif action == "free_requested":
            blocks[at] = freed.pop(at)
        elif action == "segment_alloc":
            assert held.pop(at) == size
        elif action == "segment_free":
            held[at] = size
    # THEN the older tensors are left, in the segments of before
    assert sorted(blocks.values()) == [4_000_000, 20_000_000]
    assert sum(held.values()) == report.before.reserved


VIEWER_READS = {
    *("PROTO", "FRAME", "MEMOIZE", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"),
    *("BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET"),
}
"""What the unpickler of torch/utils/viz/MemoryViz.js knows, of protocol 2 to 4."""


def test_the_viewers_unpickler_knows_every_opcode(report, tmp_path):
    report.save(tmp_path / "some.pickle")
    data = (tmp_path / "some.pickle").read_bytes()
    assert data[:2] == b"\x80\x04"
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= VIEWER_READS


def test_pytorchs_own_tools_read_it(report, snapshot):
    from torch.cuda import _memory_viz

    plain = {"format_flamegraph": str}
    assert f"total_reserved: {_memory_viz.Bytes(report.after.reserved)}" in _memory_viz.segsum(
        snapshot
    )
    assert "<module>" in _memory_viz.memory(snapshot, **plain)
    assert "train.py:10" in _memory_viz.segments(snapshot, **plain)
    assert "= cudaMalloc(" in _memory_viz.trace(snapshot)
    for page in (_memory_viz.segment_plot(snapshot), _memory_viz.trace_plot(snapshot)):
        assert "MemoryViz.js" in page


def test_entries_say_what_they_are_about(snapshot):
    entries = snapshot["device_traces"][0]
    weight = next(e for e in entries if e["user_metadata"] == "net[0].weight")
    assert (weight["action"], weight["size"]) == ("alloc", 4 * 512 * 512)
    assert weight["category"] == "parameter"
    assert weight["frames"][-1] == {"name": "<module>", "filename": "train.py", "line": 3}
    # the viewer breaks on a snapshot of categories without this one
    assert "unknown" in {entry.get("category") for entry in entries}


def test_out_of_memory_is_told(tmp_path):
    report = measured(OLDER + "torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n")
    report.save(tmp_path / "x.pickle")
    (again,) = load_snapshot(tmp_path / "x.pickle")
    for name in ("requested", "device_free", "reserved_free", "largest_free", "line"):
        assert getattr(again.oom, name) == getattr(report.oom, name)


def test_without_events_it_is_said_why_and_what_to_do(report, tmp_path):
    loaded = Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert loaded == report
    for one in (loaded, replace(loaded, unknown={"timeline": "5,000 events were lost"})):
        reason = one.unknown.get("timeline", "measure the cell again")
        with pytest.raises(ValueError, match=f"no memory snapshot.*{reason}"):
            one.save(tmp_path / "x.pickle")
    assert not list(tmp_path.iterdir())


def test_the_history_keeps_the_events_of_the_latest(report):
    history = History()
    for _ in range(KEPT + 2):
        history.append(replace(report))
    assert [number for number in range(1, KEPT + 3) if history[number].basis is None] == [1, 2]
