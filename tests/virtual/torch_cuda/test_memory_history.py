"""PyTorch's own recording of memory, and its snapshots, on the virtual GPU.

The values are those of the CUDA build of torch 2.11, which ran the same statements.
"""

from __future__ import annotations

import pickle

import pytest
import torch

from gpumem_magic import load_snapshot
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

pytestmark = pytest.mark.usefixtures("gpu")

memory = torch.cuda.memory
MIB = 1 << 20


def events(snapshot):
    """Action, requested bytes and whether a stack is known, of each event."""
    (trace,) = snapshot["device_traces"]
    return [(each["action"], each["size"], "frames" in each) for each in trace]


def here(frames):
    """The frames that lie in this file, innermost first."""
    return [(each["name"], each["line"]) for each in frames if each["filename"] == __file__]


def test_the_history_tells_every_event_and_where_it_came_from():
    memory._record_memory_history(max_entries=1000)
    x = torch.empty(1000, 1000, device="cuda")
    y = torch.empty(10, device="cuda")
    del x
    snapshot = memory._snapshot()
    assert events(snapshot) == [
        ("segment_alloc", 20 * MIB, True),
        ("alloc", 4_000_000, True),
        ("segment_alloc", 2 * MIB, True),
        ("alloc", 40, True),
        ("free_requested", 4_000_000, True),
        ("free_completed", 4_000_000, True),
    ]
    trace = snapshot["device_traces"][0]
    name = test_the_history_tells_every_event_and_where_it_came_from.__name__
    line = test_the_history_tells_every_event_and_where_it_came_from.__code__.co_firstlineno
    born, freed = here(trace[1]["frames"]), here(trace[4]["frames"])
    assert (born[0], freed[0]) == ((name, line + 2), (name, line + 4))
    assert set(trace[0]) == {
        *("action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata"),
        "frames",
    }
    small, large = sorted(snapshot["segments"], key=lambda each: each["total_size"])
    block = small["blocks"][0]
    assert (block["size"], block["requested_size"], block["state"]) == (512, 40, "active_allocated")
    assert here(block["frames"])[0] == (name, line + 3)
    assert (large["allocated_size"], large["blocks"][0]["state"]) == (0, "inactive")
    assert y.is_cuda


def test_each_snapshot_leaves_a_mark_and_switching_off_drops_the_history():
    memory._record_memory_history()
    x = torch.empty(10, device="cuda")
    memory._snapshot()
    assert events(memory._snapshot())[-1] == ("snapshot", 512, False)
    memory._record_memory_history(enabled=None)
    later = torch.empty(20, device="cuda")
    assert events(memory._snapshot()) == []
    blocks = memory._snapshot()["segments"][0]["blocks"]
    assert [bool(block["frames"]) for block in blocks] == [True, False, False]
    assert x.is_cuda
    assert later.is_cuda


@pytest.mark.parametrize(
    ("context", "stacks", "of_block"),
    [("all", 2, 1), ("alloc", 1, 1), ("state", 0, 1), (None, 0, 0)],
)
def test_context_says_whose_stacks_are_kept(context, stacks, of_block):
    torch.empty(10, device="cuda")
    memory._record_memory_history(context=context, clear_history=True)
    x = torch.empty(10, device="cuda")
    block = memory._snapshot()["segments"][0]["blocks"][0]
    assert bool(here(block["frames"])) == of_block
    del x
    trace = memory._snapshot()["device_traces"][0]
    lines = {here(each["frames"])[0] for each in trace if "frames" in each}
    assert len(lines) == stacks


def test_no_more_than_max_entries_are_kept_and_state_keeps_one():
    memory._record_memory_history(max_entries=3)
    for size in (1, 2, 3):
        torch.empty(size, device="cuda")
    assert [size for _, size, _ in events(memory._snapshot())] == [12, 12, 12]
    memory._record_memory_history("state")
    x = torch.empty(5, device="cuda")
    assert events(memory._snapshot()) == [("alloc", 20, True)]
    assert x.is_cuda


def test_skipped_actions_are_left_out():
    memory._record_memory_history(skip_actions=["free_requested", "segment_alloc", "snapshot"])
    torch.empty(1, device="cuda")
    memory._snapshot()
    assert [action for action, *_ in events(memory._snapshot())] == ["alloc", "free_completed"]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"enabled": "foo"}, "state to be 'state', 'all', or None"),
        ({"context": "foo"}, "context to be 'state', 'alloc', 'all', or None"),
        ({"stacks": "foo"}, "stacks to be 'python', or 'all'"),
    ],
)
def test_wrong_arguments_are_refused_in_torchs_words(wrong, expected):
    with pytest.raises(RuntimeError, match=f"expected {expected}"):
        memory._record_memory_history(**wrong)


def test_the_older_form_of_the_call():
    memory._record_memory_history(
        True, trace_alloc_max_entries=100, trace_alloc_record_context=True
    )
    torch.empty(1, device="cuda")
    assert len(events(memory._snapshot())) == 4
    memory._record_memory_history(False)
    assert events(memory._snapshot()) == []


def test_what_was_refused_is_in_the_snapshot_that_an_observer_takes(gpu):
    told = []

    def observe(device, wanted, limit, free):
        told.append((device, wanted, limit, free, memory._snapshot()))

    memory._record_memory_history()
    torch._C._cuda_attach_out_of_memory_observer(observe)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device="cuda")
    ((device, wanted, limit, free, snapshot),) = told
    driver = gpu.allocator.driver
    assert (device, wanted, limit, free) == (0, 1 << 42, driver.total, driver.free)
    (refused,) = snapshot["device_traces"][0]
    assert (refused["action"], refused["size"], refused["device_free"]) == ("oom", 1 << 42, free)


def test_a_dumped_snapshot_is_read_by_torchs_own_tools_and_by_ours(tmp_path):
    from torch.cuda import _memory_viz

    memory._record_memory_history()
    x = torch.empty(1000, 1000, device="cuda")
    y = x + 1
    del x
    memory._dump_snapshot(str(tmp_path / "x.pickle"))
    snapshot = pickle.loads((tmp_path / "x.pickle").read_bytes())
    assert "= cudaMalloc(" in _memory_viz.trace(snapshot)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
    stacks = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert "test_memory_history.py" in stacks
    assert "total_reserved: 20.0MiB" in _memory_viz.segsum(snapshot)
    (report,) = load_snapshot(tmp_path / "x.pickle")
    assert report.peak.allocated == 8_000_512
    assert y.is_cuda


def test_metadata_and_the_traceback_of_an_allocation():
    memory._record_memory_history()
    torch._C._cuda_setMemoryMetadata("epoch 1")
    x = torch.empty(10, device="cuda")
    torch._C._cuda_setMemoryMetadata("")
    y = torch.empty(10, device="cuda")
    told = [each["user_metadata"] for each in memory._snapshot()["device_traces"][0]]
    assert told == ["epoch 1", "epoch 1", ""]
    assert here(torch._C._cuda_allocationTraceback(x.untyped_storage().data_ptr()))
    assert torch._C._cuda_allocationTraceback(1) is None
    assert y.is_cuda


def test_a_recording_goes_on_beside_a_measured_cell_and_ends_with_the_card(gpu):
    from gpumem_magic.values.recording import Cell
    from gpumem_magic.virtual.source import VirtualSource

    source = VirtualSource(gpu.model, gpu)
    memory._record_memory_history()
    source.start(dict)
    x = torch.empty(10, device="cuda")
    (recording,) = source.stop(Cell("", ""), {}, None)
    y = torch.empty(10, device="cuda")
    assert len(recording.events) == 2
    assert len(events(memory._snapshot())) == 3
    assert x.is_cuda
    assert y.is_cuda
    gpu.switch_off()
    with VirtualGPU(lookup("T4")):
        torch.empty(10, device="cuda")
        assert events(memory._snapshot()) == []
    gpu.__enter__()


@pytest.mark.filterwarnings("ignore:.*_set_allocator_settings is deprecated")
def test_the_settings_of_the_allocator_can_be_changed(gpu):
    memory._set_allocator_settings("max_split_size_mb:128,expandable_segments:True")
    settings = memory._snapshot()["allocator_settings"]
    assert settings["max_split_size"] == 128 * MIB
    assert settings["expandable_segments"]
    torch.empty(10 * MIB, device="cuda")
    assert [each["is_expandable"] for each in torch.cuda.memory_snapshot()] == [True]
    with pytest.raises(ValueError, match="Unrecognized key 'foo'"):
        memory._set_allocator_settings("foo:1")


def test_memory_is_taken_without_a_tensor():
    address = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0


def test_who_holds_memory(gpu):
    torch.empty(MIB, device="cuda")
    context = (gpu.model.context + 20 * MIB) / MIB
    assert f"uses {context:>12.3f} MB GPU memory" in torch.cuda.list_gpu_processes()
    assert torch.cuda.device_memory_used() == gpu.model.context + 20 * MIB
