"""What a cell on the virtual GPU is recorded as: events, labels, levels, failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Action, Category, Cell, Phase
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.source import VirtualSource

MIB = 1 << 20


@pytest.fixture
def source():
    opened = VirtualSource(lookup("T4"))
    opened.enter()
    yield opened
    opened.leave()
    opened.close()


def record(source, code, names=None):
    """The recording of `code`, run as a cell; the error it raised is part of it."""
    names = {"torch": torch, "nn": nn} if names is None else names
    error = None
    source.start(lambda: names)
    try:
        exec(compile(code, "<cell>", "exec"), names)
    except Exception as raised:
        error = raised
    (recording,) = source.stop(Cell(code, "<cell>", 7), {}, error)
    return recording


def test_each_block_is_an_event_with_the_line_that_asked_for_it(source):
    recording = record(source, "x = torch.ones(1000, device='cuda')\n\ny = x + 1\ndel x\n")
    events, stacks = recording.events, recording.stacks
    assert [Action(action).name for action in events.action] == [
        "SEGMENT_ALLOC", "ALLOC", "ALLOC", "FREE",
    ]  # fmt: skip
    assert events.size.tolist() == [2 * MIB, 4096, 4096, 4096]
    assert events.requested.tolist() == [2 * MIB, 4000, 4000, 4000]
    lines = [next(f.line for f in stacks[s] if f.filename == "<cell>") for s in events.stack]
    assert lines == [1, 1, 3, 4]
    assert events.address[1] == events.address[3] != events.address[2]
    assert (np.diff(events.time) >= 0).all()
    assert 0 <= events.time[0] <= events.time[-1] <= recording.seconds


def test_frames_of_the_virtual_gpu_itself_are_not_the_users(source):
    recording = record(source, "x = nn.Linear(3, 3).to('cuda')(torch.ones(2, 3, device='cuda'))")
    files = {frame.filename for stack in recording.stacks for frame in stack}
    assert "<cell>" in files
    assert any("nn/modules/linear.py" in name.replace("\\", "/") for name in files)


def test_readings_before_and_after_follow_the_allocator(source):
    names = {"torch": torch}
    first = record(source, "x = torch.ones(1000, device='cuda')", names)
    second = record(source, "y = torch.ones(MIB := 1 << 20, device='cuda')", names)
    context = lookup("T4").context
    assert (first.before.allocated, first.after.allocated) == (0, 4096)
    assert (second.before.allocated, second.after.allocated) == (4096, 4096 + 4 * MIB)
    assert second.after.reserved == 22 * MIB
    assert second.after.device_used == second.after.process_used == context + 22 * MIB
    assert second.initial.size.tolist() == [4096]
    assert second.initial.requested.tolist() == [4000]
    assert source.level().allocated == 4096 + 4 * MIB


def test_phases_are_told(source):
    recording = record(
        source,
        "net = nn.Linear(64, 64, device='cuda')\n"
        "optimizer = torch.optim.Adam(net.parameters())\n"
        "net(torch.ones(2, 64, device='cuda')).sum().backward()\n"
        "optimizer.step()\n",
    )
    events = recording.events
    weights = events.requested == 64 * 64 * 4
    allocated = events.action == Action.ALLOC
    found = [Phase(phase).name for phase in events.phase[weights & allocated]]
    assert found[:2] == ["FORWARD", "BACKWARD"]
    assert set(found[2:]) == {"OPTIMIZER"}


def test_owners_are_labelled(source):
    recording = record(
        source,
        "net = nn.Linear(64, 64, device='cuda')\n"
        "optimizer = torch.optim.Adam(net.parameters())\n"
        "x = torch.ones(2, 64, device='cuda')\n"
        "net(x).sum().backward()\n"
        "optimizer.step()\n",
    )
    owners = {(label.category, label.name) for label in recording.labels}
    assert (Category.PARAMETER, "net.weight") in owners
    assert (Category.GRADIENT, "net.weight.grad") in owners
    assert {name for kind, name in owners if kind is Category.WORKSPACE} >= {"cuBLAS workspace"}
    states = [name for kind, name in owners if kind is Category.OPTIMIZER_STATE]
    assert len(states) == 4
    inputs = [label for label in recording.labels if label.name == "x"]
    assert {(label.shape, label.dtype) for label in inputs} == {((2, 64), "float32")}


def test_out_of_memory_is_a_failure_with_its_numbers(source):
    recording = record(
        source,
        "a = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')\n"
        "b = torch.empty(40 << 30, dtype=torch.uint8, device='cuda')\n",
    )
    failure = recording.failure
    assert (failure.requested, failure.segment) == (40 << 30, 40 << 30)
    assert failure.op == "aten.empty"
    assert failure.device_free == lookup("T4").total - lookup("T4").context - 20 * MIB
    assert failure.reserved_free == failure.largest_free == 17 * MIB
    assert next(f.line for f in recording.stacks[failure.stack] if f.filename == "<cell>") == 2
    assert "Tried to allocate 40.00 GiB" in failure.message
    assert recording.retries == 1
    assert recording.error.startswith("OutOfMemoryError: CUDA out of memory")
    assert Action.OOM in recording.events.action


def test_an_out_of_memory_error_that_the_cell_handles_is_no_failure(source):
    recording = record(
        source,
        "try:\n    torch.empty(40 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n    pass\n",
    )
    assert (recording.failure, recording.error) == (None, None)
    assert Action.OOM in recording.events.action


def test_other_errors_are_told_in_one_line(source):
    recording = record(source, "x = torch.ones(3, device='cuda')\n1 / 0\n")
    assert recording.error == "ZeroDivisionError: division by zero"
    assert recording.failure is None
    assert recording.after.allocated == 512


def test_stop_needs_a_start(source):
    with pytest.raises(RuntimeError, match="start comes first"):
        source.stop(Cell("", "<cell>", 1), {}, None)


def test_closing_in_the_middle_leaves_torch_as_it_was():
    opened = VirtualSource(lookup("T4"))
    opened.enter()
    opened.start(dict)
    opened.leave()
    opened.close()
    assert not torch.cuda.is_available()


def test_what_blocks_were_made_for_is_known_without_a_name(source):
    code = "x = torch.ones(64, 100, device='cuda')\n(x.double()[:9] @ x.double().T).view(-1)\n"
    recording = record(source, code + "torch.ones(9, device='cuda')")
    births = np.flatnonzero(recording.events.action == Action.ALLOC).tolist()
    known = ((64, 100), "float32"), ((64, 100), "float64"), ((64, 100), "float64")
    assert [made for birth in births if (made := recording.made(birth))[0]] == [*known]
    (block,) = [block for block in build_trace(recording).blocks if block.line == 1]
    assert (block.name, block.shape) == ("x", (64, 100))


def test_blocks_of_a_trace_have_the_shapes_of_what_nobody_named(source):
    code = "y = torch.ones(64, 512, device='cuda', requires_grad=True).exp().sum()\ny.backward()"
    large = [block for block in build_trace(record(source, code)).blocks if block.size > MIB >> 4]
    assert {(block.name, block.shape, block.dtype) for block in large} == {
        (None, (64, 512), "float32")
    }
