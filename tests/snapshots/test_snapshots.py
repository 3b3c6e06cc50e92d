"""Snapshots of PyTorch as reports: right peaks, hostile files refused."""

from __future__ import annotations

import copy
import gzip
import os
import pickle
import random
import struct

import pytest

from gpumem_magic.pipeline import analyse
from gpumem_magic.snapshots import load_snapshot
from gpumem_magic.snapshots.files import unpacked_size
from gpumem_magic.snapshots.recordings import recordings

MIB = 1 << 20
SCRIPT = "/home/user/train.py"
AT = {"filename": SCRIPT, "line": 3, "name": "<module>"}
INSIDE = {"filename": SCRIPT, "line": 9, "name": "forward"}
TORCH = "/usr/lib/python3/site-packages/torch"
BACKWARD = [
    {"filename": f"{TORCH}/autograd/__init__.py", "line": 50, "name": "_make_grads"},
    {"filename": f"{TORCH}/autograd/__init__.py", "line": 300, "name": "backward"},
    {"filename": SCRIPT, "line": 5, "name": "<module>"},
]


def entry(action, addr, size, at, frames=(), **more):
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "time_us": at,
        "frames": [*frames],
        **more,
    }


def block(address, size, state="active_allocated", requested=None):
    requested = size if requested is None else requested
    return {"address": address, "size": size, "state": state, "requested_size": requested}


def segment(address, size, blocks, device=0):
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "is_expandable": False,
        "blocks": blocks,
    }


def a_snapshot():
    """Two requests in one segment of 20 MiB, made at lines 3 and 9; the first is given back."""
    base, second = 1 << 40, (1 << 40) + 4 * MIB
    trace = [
        entry("segment_alloc", base, 20 * MIB, 1_000_000, [AT]),
        entry("alloc", base, 4 * MIB - 5, 1_000_001, [AT]),
        entry("alloc", second, 8 * MIB, 2_000_000, [INSIDE, AT]),
        entry("free_requested", base, 4 * MIB - 5, 3_000_000, [AT]),
        entry("free_completed", base, 4 * MIB - 5, 3_000_000, [AT]),
    ]
    blocks = [block(base, 4 * MIB, "inactive", 0), block(second, 8 * MIB)]
    blocks.append(block(second + 8 * MIB, 8 * MIB, "inactive", 0))
    return {"segments": [segment(base, 20 * MIB, blocks)], "device_traces": [trace]}


@pytest.fixture
def load(tmp_path):
    """Tells what loading some bytes gives."""

    def loaded(data, name="some.pickle"):
        path = tmp_path / name
        path.write_bytes(data)
        return load_snapshot(path)

    return loaded


def test_a_snapshot_becomes_a_report(load):
    (report,) = load(pickle.dumps(a_snapshot(), protocol=4))
    assert report.name == "some.pickle"
    assert (report.before.allocated, report.before.reserved) == (0, 0)
    assert (report.peak.allocated, report.peak.reserved) == (12 * MIB, 20 * MIB)
    assert (report.after.allocated, report.after.reserved) == (8 * MIB, 20 * MIB)
    assert report.cell.filename == SCRIPT
    assert [(line.number, line.allocated, line.freed) for line in report.lines] == [
        (3, 4 * MIB, 4 * MIB),
        (9, 8 * MIB, 0),
    ]
    assert report.seconds == 2.0
    assert "a snapshot does not tell" in report.unknown["peak.device_used"]


def test_modules_of_the_notebooks_folder_are_not_imported(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("pickle", "gzip", "random", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('mine')")
    assert load(pickle.dumps(a_snapshot()))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_and_gz(load, protocol):
    data = pickle.dumps(a_snapshot(), protocol)
    assert load(data)[0].peak == load(gzip.compress(data), "x.pickle.gz")[0].peak


def test_a_packed_file_may_need_what_it_unpacks_to(tmp_path):
    path = tmp_path / "x.pickle.gz"
    data = random.Random(1).randbytes(1000) * 10
    path.write_bytes(gzip.compress(data))
    assert unpacked_size(path) == len(data)
    path.write_bytes(gzip.compress(b"short")[:-4] + b"\xff" * 4)  # a size that it does not have
    assert unpacked_size(path) == 40 * path.stat().st_size
    path.write_bytes(data)
    assert unpacked_size(path) == len(data)


def test_lines_have_their_text_where_the_script_lies_here(load, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nx = make()\n\n\n\n\n\nreturn x @ x\n")
    snapshot = a_snapshot()
    for one in snapshot["device_traces"][0]:
        one["frames"] = [dict(frame, filename=str(script)) for frame in one["frames"]]
    (report,) = load(pickle.dumps(snapshot))
    assert [line.source for line in report.lines] == ["x = make()", "return x @ x"]


def test_what_autograds_threads_took_belongs_to_the_call_of_backward():
    snapshot = a_snapshot()
    first = 1 << 40
    snapshot["device_traces"][0] += [
        entry("alloc", first, 512, 3_100_000, BACKWARD),
        entry("free_requested", first, 512, 3_200_000),
        entry("free_completed", first, 512, 3_200_000),
        entry("alloc", first, 4 * MIB, 3_300_000),
    ]
    snapshot["segments"][0]["blocks"][0] = block(first, 4 * MIB)
    (found,) = recordings(snapshot)
    lines = [found.stacks[number][-1].line for number in found.events.stack.tolist()]
    assert lines == [3, 3, 3, 3, 3, 5, 5, 5, 5]
    assert found.events.phase.tolist() == [0] * 5 + [1] * 4


def test_what_was_there_before_is_counted_and_said():
    snapshot = a_snapshot()
    del snapshot["device_traces"][0][:2]
    (found,) = recordings(snapshot)
    assert (found.before.allocated, found.before.reserved) == (4 * MIB, 20 * MIB)
    assert "4.00 MiB were allocated already" in found.notes[0]


def test_slack_of_older_blocks_is_counted():
    snapshot = a_snapshot()
    del snapshot["device_traces"][0][:2]
    older, empty = 1 << 41, 1 << 42
    # of 12 MiB, 0.5 MiB are too little to be split off, and 3 MiB are not
    for at, asked in ((older, 11 * MIB + MIB // 2), (older + 64 * MIB, 9 * MIB)):
        snapshot["device_traces"][0] += [
            entry(action, at, asked, 3_500_000) for action in ("free_requested", "free_completed")
        ]
        rest = [block(at, 12 * MIB, "inactive", 0)]
        snapshot["segments"].append(segment(at, 12 * MIB, rest))
    rest = [block(empty, 2 * MIB, "inactive", 0)]
    snapshot["segments"].append(segment(empty, 2 * MIB, rest))
    (found,) = recordings(snapshot)
    assert found.initial.size.tolist() == [4 * MIB, 12 * MIB, 9 * MIB]
    assert found.before.reserved == (20 + 2 * 12 + 2) * MIB


def test_an_out_of_memory_error_is_explained(load):
    snapshot = a_snapshot()
    oom = entry("oom", 0, 16 * MIB, 4_000_000, [AT], device_free=3 * MIB)
    snapshot["device_traces"][0].append(oom)
    (report,) = load(pickle.dumps(snapshot))
    assert report.oom is not None
    assert (report.oom.requested, report.oom.device_free) == (16 * MIB, 3 * MIB)
    assert (report.oom.reserved_free, report.oom.largest_free) == (12 * MIB, 8 * MIB)
    assert report.oom.line == 3
    # what is not known, or of no use elsewhere, is left out or said
    text = report.text()
    assert "device 0 of the snapshot · 3.0 s" in " ".join(text.split())
    assert "--free" not in text
    assert "no advice" in text


def test_each_device_has_its_report(load):
    snapshot = a_snapshot()
    snapshot["device_traces"].append([])
    snapshot["segments"].append(segment(1 << 41, 2 * MIB, [block(1 << 41, 2 * MIB)], device=1))
    reports = load(pickle.dumps(snapshot))
    assert [report.device.index for report in reports] == [0, 1]
    assert reports[1].peak.allocated == 2 * MIB


class Runs:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def traced(*traces):
    return a_snapshot() | {"device_traces": [*traces]}


def hostile(mark):
    """Pickles that want to run something, or to take more memory or time than there is."""
    command = f"touch {mark}"
    return {
        "os.system": pickle.dumps(Runs(os.system, command)),
        "os.system in a snapshot": pickle.dumps(a_snapshot() | {"x": Runs(os.system, command)}),
        "protocol 0": pickle.dumps(Runs(os.system, command), 0),
        "open": pickle.dumps(Runs(open, str(mark), "w")),
        "eval": pickle.dumps(Runs(eval, f"open({str(mark)!r}, 'w')")),
        "INST": f"(S'{command}'\nios\nsystem\n.".encode(),
        "extension": b"\x80\x02\x82\x01.",
        "persistent id": b"Pfoo\n.",
        "binary persistent id": b"\x80\x04K\x00Q.",
        "memo of 16 GiB": b"\x80\x02]r\xff\xff\xff\x7f.",
        "bytes of 1 TiB": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x",
        "text of 8 GiB": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 33) + b"x",
        "array of 16 GiB": b"\x80\x05\x96" + struct.pack("<Q", 1 << 34) + b"x",
        "frame of 2^60": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"x.",
        "number of 1 GiB": b"\x80\x04\x8b" + struct.pack("<i", 1 << 30) + b"x",
        "number of 2 million digits": b"I" + b"9" * 2_000_000 + b"\n.",
        "nested a million deep": b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
        "a hundred thousand devices": pickle.dumps(traced(*([] for _ in range(100_000)))),
        "a file name of 1 MiB": pickle.dumps(
            traced([entry("alloc", 1, 2, 3, [AT | {"filename": "x" * MIB}])])
        ),
        "unpacks to more than it is": gzip.compress(b"\x80\x04" + b"N0" * 2_000_000 + b"."),
    }


@pytest.mark.parametrize("name", hostile("mark"))
def test_hostile_pickles_are_refused_and_run_nothing(load, tmp_path, name):
    mark = tmp_path / "mark"
    with pytest.raises(ValueError, match=r"some\.pickle: \S"):
        load(hostile(mark)[name])
    assert not mark.exists()


def test_cut_files_are_refused(load):
    data = pickle.dumps(a_snapshot())
    for cut in (
        b"",
        b"no pickle at all",
        data[:50],
        data[: len(data) // 2],
        gzip.compress(data)[:-9],
    ):
        with pytest.raises(ValueError, match=r"some\.pickle: \S"):
            load(cut)


def change(path, value):
    """A change of a snapshot: sets the place that `path` leads to."""

    def changed(snapshot):
        snapshot = copy.deepcopy(snapshot)
        place = snapshot
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return snapshot

    return changed


TRACE = "device_traces"
DAMAGED = {
    "device_traces[0][1].size": [-5, 1 << 70, 1.5, "x", None, float("inf")],
    "device_traces[0][1].addr": ["abc", -1],
    "device_traces[0][0].time_us": [float("nan"), 1 << 80],
    "device_traces[0][1].frames": [
        *("abc", 7),
        [{"filename": "a.py", "name": "f", "line": 1 << 31}],
    ],
    "device_traces[0][1].action": [["alloc"], None],
    "segments[0].device": ["0", 10**9],
    "segments[0].total_size": [float("inf"), 1],
    "segments[0].blocks": [7],
}


@pytest.mark.parametrize(
    ("place", "value"), [(p, v) for p, values in DAMAGED.items() for v in values]
)
def test_damaged_values_are_named(place, value):
    steps = [
        int(s) if s.isdigit() else s for s in place.replace("[", ".").replace("]", "").split(".")
    ]
    with pytest.raises(ValueError, match=r"device_traces|segments"):
        recordings(change(steps, value)(a_snapshot()))


@pytest.mark.parametrize(
    "value", [None, [], {}, {"segments": []}, 3, "text", {TRACE: [], "segments": {}}]
)
def test_what_is_no_snapshot_is_refused(value):
    with pytest.raises(ValueError, match=r"snapshot|should be"):
        recordings(value)


def test_an_empty_snapshot_says_how_to_fill_it():
    with pytest.raises(ValueError, match="_record_memory_history"):
        recordings({"segments": [], TRACE: [[]]})


SIZE, APART = 12 * MIB, 32 * MIB


def random_history(steps):
    """Entries of random requests of 12 MiB, the highest sum on the way, and what is left."""
    rng, trace, alive, peak = random.Random(7), [], [], 0
    for step in range(steps):
        free = [place for place in range(64) if place not in alive]
        if free and (not alive or rng.random() < 0.55):
            alive.append(rng.choice(free))
            actions = ("segment_alloc", "alloc")
            place = alive[-1]
        else:
            place = alive.pop(rng.randrange(len(alive)))
            actions = ("free_requested", "free_completed", "segment_free")
        trace += [entry(action, (1 << 42) + place * APART, SIZE, step) for action in actions]
        peak = max(peak, len(alive) * SIZE)
    return trace, peak, alive


def test_the_peak_is_that_of_an_independent_count():
    trace, peak, alive = random_history(2_000)
    places = [(1 << 42) + place * APART for place in alive]
    segments = [segment(at, SIZE, [block(at, SIZE)]) for at in places]
    (found,) = recordings({"segments": segments, TRACE: [trace]})
    report = analyse(found).report
    assert report.before.allocated == 0
    assert report.peak.allocated == report.peak.reserved == peak
    assert report.after.allocated == len(alive) * SIZE
    begins = next(i for i in range(1_500, 1_600) if trace[i]["action"] == "segment_alloc")
    (later,) = recordings({"segments": segments, TRACE: [trace[begins:]]})
    so_far = sum({"alloc": 1, "free_requested": -1}.get(e["action"], 0) for e in trace[:begins])
    assert later.before.allocated == later.before.reserved == so_far * SIZE
