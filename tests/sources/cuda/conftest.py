"""An allocator that the test plays, behind `torch.cuda`."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from gpumem_magic.sources.cuda.nvml import DeviceUse

torch = pytest.importorskip("torch")

MIB = 1 << 20


class FakeAllocator:
    """Devices whose every block has a segment of its own, with torch's private functions."""

    def __init__(self, devices=2):
        self.segments = [{} for _ in range(devices)]
        self.traces = [[] for _ in range(devices)]
        self.changes = [0] * devices
        self.retries = [0] * devices
        self.recording = None
        self.initialized = True
        self.timed = True
        self.calls = []

    def alloc(self, device, size):
        address = (device + 1 << 40) + self.changes[device] * 64 * MIB
        self.segments[device][address] = size
        self._note(device, "segment_alloc", address, size)
        self._note(device, "alloc", address, size)
        self.changes[device] += 1
        return address

    def fail(self, device, size):
        self._note(device, "oom", 0, size)
        self.changes[device] += 1
        self.retries[device] += 1
        raise RuntimeError(f"CUDA out of memory. Tried to allocate 20.00 MiB. GPU {device} has ...")

    def record(self, enabled="all", **settings):
        self.calls.append(enabled)
        self.recording = settings if enabled else None
        self.traces = [[] for _ in self.traces]

    def snapshot(self):
        segments = [
            {
                "device": device,
                "address": address,
                "total_size": size,
                "blocks": [
                    {
                        "size": size,
                        "requested_size": size,
                        "address": address,
                        "state": "active_allocated",
                    }
                ],
            }
            for device, found in enumerate(self.segments)
            for address, size in found.items()
        ]
        return {"segments": segments, "device_traces": [list(trace) for trace in self.traces]}

    def stats(self, device):
        total = sum(self.segments[device].values())
        held = {"all": {"current": total, "peak": total}}
        counts = {"all": {"allocated": self.changes[device], "freed": 0}}
        return {
            "allocated_bytes": held,
            "reserved_bytes": held,
            "allocation": counts,
            "num_ooms": 0,
            "num_alloc_retries": self.retries[device],
        }

    def _note(self, device, action, address, size):
        if self.recording is None:
            return
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "frames": []}
        if self.timed:
            entry["time_us"] = round(time.time() * 1e6)
        trace = self.traces[device]
        trace.append(entry)
        del trace[: -self.recording.get("max_entries", 1000)]


@pytest.fixture
def allocator(monkeypatch):
    """The allocator behind `torch.cuda` in this test."""
    yield from played(monkeypatch, "cuda")


@pytest.fixture
def xpu_allocator(monkeypatch):
    """The same behind `torch.xpu`."""
    yield from played(monkeypatch, "xpu")


def played(monkeypatch, kind):
    fake = FakeAllocator()
    module, compiled = getattr(torch, kind), torch._C
    monkeypatch.setattr(module, "is_initialized", lambda: fake.initialized)
    monkeypatch.setattr(module, "device_count", lambda: len(fake.segments))
    monkeypatch.setattr(module, "current_device", lambda: 0)
    properties = {"major": 7, "minor": 5, "uuid": "uuid"} if kind == "cuda" else {}
    monkeypatch.setattr(
        module,
        "get_device_properties",
        lambda index: SimpleNamespace(name=f"GPU {index}", total_memory=16 << 30, **properties),
    )
    monkeypatch.setattr(module, "mem_get_info", lambda device: (10 << 30, 16 << 30))
    monkeypatch.setattr(module.memory, "_record_memory_history", fake.record)
    monkeypatch.setattr(module.memory, "_snapshot", fake.snapshot)
    monkeypatch.setattr(module.memory, "memory_snapshot", lambda: fake.snapshot()["segments"])
    monkeypatch.setattr(compiled, f"_{kind}_memoryStats", fake.stats, raising=False)
    if kind == "cuda":  # torch.xpu has no such questions
        monkeypatch.setattr(compiled, "_cuda_hasPrimaryContext", lambda _: True, raising=False)
        monkeypatch.setattr(
            compiled, "_cuda_isHistoryEnabled", lambda: fake.recording is not None, raising=False
        )
    monkeypatch.setattr(
        "gpumem_magic.sources.cuda.nvml.Driver.read_device",
        lambda self, which: DeviceUse(used=6 << 30, this_process=1 << 30),
    )
    yield fake
    fake.record(None)
