"""CudaSource over `torch.xpu`, whose allocator keeps the same history; played, for want of one."""

from __future__ import annotations

import pytest

from gpumem_magic import devices
from gpumem_magic.glance import Glancer
from gpumem_magic.sources import ACTIVE, Active
from gpumem_magic.sources.accelerator.backend import TorchBackend
from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.values.recording import Action, Cell

torch = pytest.importorskip("torch")
if not hasattr(torch.xpu.memory, "_snapshot"):
    pytest.skip("this torch keeps no history of XPU devices", allow_module_level=True)

MIB = 1 << 20
CELL = Cell("", "<cell>")


@pytest.fixture
def source(xpu_allocator, monkeypatch):
    monkeypatch.setattr(torch._C, "_xpu_recordMemoryHistory", None, raising=False)
    monkeypatch.setattr(devices, "find_backend", lambda: TorchBackend("xpu"))
    source = devices.choose_source("auto")
    yield source
    source.close()


def test_its_history_is_recorded(source, xpu_allocator):
    assert isinstance(source, CudaSource)
    xpu_allocator.alloc(0, MIB)
    source.start(dict)
    xpu_allocator.alloc(0, 3 * MIB)
    (recording,) = source.stop(CELL, {}, None)
    assert xpu_allocator.calls == ["all", None]
    assert recording.device.name == "GPU 0"
    assert recording.device.capability == (0, 0)
    assert (recording.before.allocated, recording.after.allocated) == (MIB, 4 * MIB)
    assert recording.events.action.tolist() == [Action.SEGMENT_ALLOC, Action.ALLOC]
    assert recording.initial.size.tolist() == [MIB]
    assert recording.complete


def test_what_its_driver_would_know_is_unknown(source):
    source.start(dict)
    (recording,) = source.stop(CELL, {}, None)
    assert recording.after.device_used == 6 << 30  # torch.xpu tells
    assert recording.after.process_used is None
    assert "not asked" in recording.after.unknown["process_used"]


def test_its_own_errors_are_the_ones_that_count(source, xpu_allocator):
    for text, ours in (("XPU", True), ("CUDA", False)):
        source.start(dict)
        error = RuntimeError(f"{text} out of memory. Tried to allocate 20.00 MiB. GPU 0 has a")
        (recording,) = source.stop(CELL, {}, error)
        assert (recording.failure is not None) is ours


def test_its_blocks_are_listed(source, xpu_allocator, monkeypatch):
    address = xpu_allocator.alloc(0, 5 * MIB)
    entries = xpu_allocator.snapshot()["segments"]
    listed = [{**entry, "stream": 0, "segment_type": "large"} for entry in entries]
    monkeypatch.setattr(torch.xpu.memory, "memory_snapshot", lambda: listed)
    memory = source.memory()
    assert memory.blocks == {address: 5 * MIB}
    assert memory.unlisted == ""


def test_a_look_at_all_devices_sees_them(source, xpu_allocator):
    xpu_allocator.alloc(1, 2 * MIB)
    glancer = Glancer(source)
    assert [glance.level.allocated for glance in glancer.look()] == [0, 2 * MIB]
    glancer.close()


def test_no_prediction_begins_there(source):
    token = ACTIVE.set(Active(source, recording=False))
    try:
        with devices.source_in_use() as found:
            assert found is None
    finally:
        ACTIVE.reset(token)
