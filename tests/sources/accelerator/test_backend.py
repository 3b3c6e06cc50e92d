"""What torch tells of MPS and XPU, by version: played here, as no machine has all of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumem_magic import devices
from gpumem_magic.sources.accelerator.backend import Counters, TorchBackend

torch = pytest.importorskip("torch")

MIB = 1 << 20
STATS = {
    "allocated_bytes": {"all": {"current": 3 * MIB, "peak": 9 * MIB}},
    "reserved_bytes": {"all": {"current": 20 * MIB, "peak": 20 * MIB}},
}


def refuse(*_):
    raise RuntimeError("Allocator for mps is not a DeviceAllocator.")


@pytest.fixture
def mps(monkeypatch):
    """torch.mps on a Mac, before torch.accelerator counted for it."""
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 3 * MIB)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 40 * MIB)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 << 30)
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceStats", refuse, raising=False)
    return TorchBackend("mps")


@pytest.fixture
def xpu(monkeypatch):
    """torch.xpu of torch 2.5, before torch.accelerator had counters."""
    module = SimpleNamespace(
        current_device=lambda: 1,
        mem_get_info=lambda index: (12 << 30, 16 << 30),
        get_device_properties=lambda index: SimpleNamespace(name="Arc", total_memory=16 << 30),
    )
    monkeypatch.setattr(torch, "xpu", module)
    monkeypatch.delattr(torch._C, "_accelerator_getDeviceStats", raising=False)
    monkeypatch.setattr(torch._C, "_xpu_memoryStats", lambda index: STATS, raising=False)
    return TorchBackend("xpu")


def test_mps_counts_what_is_allocated_and_says_why_no_more(mps):
    assert (mps.current(), mps.counters(0)) == (0, Counters(3 * MIB))
    reading = mps.read(0)
    assert (reading.allocated, reading.process_used) == (3 * MIB, 40 * MIB)
    assert reading.reserved is None
    assert reading.device_used is None
    assert "does not count it for MPS" in reading.unknown["reserved"]
    assert "shares the memory of the whole machine" in reading.unknown["device_used"]
    assert (mps.describe(0).name, mps.describe(0).total) == ("Apple GPU (MPS)", 10 << 30)


def test_mps_has_a_peak_where_torch_accelerator_counts_for_it(mps, monkeypatch):
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceStats", lambda index: STATS)
    assert mps.counters(0) == Counters(3 * MIB, 20 * MIB, 9 * MIB)
    assert set(mps.read(0).unknown) == {"device_used"}


def test_xpu_of_each_version(xpu, monkeypatch):
    assert (xpu.current(), xpu.counters(1)) == (1, Counters(3 * MIB, 20 * MIB, 9 * MIB))
    reading = xpu.read(1)
    assert (reading.device_used, reading.process_used) == (4 << 30, None)
    assert set(reading.unknown) == {"process_used"}
    assert (xpu.describe(1).name, xpu.describe(1).total) == ("Arc", 16 << 30)
    monkeypatch.setattr(xpu._module, "mem_get_info", refuse)
    assert set(xpu.read(1).unknown) == {"process_used", "device_used"}


def test_the_accelerator_of_this_machine_is_measured_by_default(mps, monkeypatch):
    monkeypatch.setattr(devices, "find_backend", lambda: mps)
    assert devices.resolve_device("auto") == "mps"
    assert devices.device_names()[:3] == ("auto", "off", "mps")
    source = devices.choose_source("auto")
    assert source.device.name == "Apple GPU (MPS)"
    assert devices.choose_source("T4").close() is None
    source.close()


def test_elsewhere_its_name_is_refused():
    with pytest.raises(ValueError, match="auto, off"):
        devices.check_device("mps")


def test_predictions_are_for_cards(bench):
    from gpumem_magic.sources import ACTIVE, Active

    token = ACTIVE.set(Active(bench().source, recording=False))
    try:
        with devices.source_in_use() as found:
            assert devices.card_for(None, found).key == "T4"
    finally:
        ACTIVE.reset(token)


def test_a_cell_of_a_notebook(bench, monkeypatch, shell, capsys):
    monkeypatch.setattr(devices, "find_backend", lambda: bench().backend)
    shell.run_line_magic("load_ext", "gpumem_magic")
    try:
        shell.run_cell("%%gpumem\nimport torch\nx = torch.ones(1 << 20, device='meta')")
        said = capsys.readouterr().out
        shell.run_cell("%gpumem\n%gpucheck")
        said += capsys.readouterr().out
    finally:
        shell.run_line_magic("unload_ext", "gpumem_magic")
    assert "of 16.00 GiB" in said
    assert "measured on Fake" in said
    assert "x = torch.ones(1 << 20, device='meta')" in said
    assert "device      Fake, 16.00 GiB" in said
    assert "variable · float32[1048576] · input" in said
