"""The source for accelerators without history, on CUDA's counters, beside CUDA's own history."""

from __future__ import annotations

import pytest

from gpumem_magic.pipeline import analyse
from gpumem_magic.sources.accelerator.backend import TorchBackend
from gpumem_magic.sources.accelerator.source import AcceleratorSource
from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.values.recording import Category, Cell

torch = pytest.importorskip("torch")
if not hasattr(torch.accelerator, "memory_stats"):
    pytest.skip("torch.accelerator has no counters", allow_module_level=True)

CODE = """nn = torch.nn
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))
model.cuda()
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(2):
    x = torch.ones(128, 256, device="cuda")
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
big = torch.ones(3, 1 << 20, device="cuda")
del big
"""
CELL = Cell(CODE, "<cell>")


def measured(source):
    names = {"torch": torch}
    source.start(lambda: names)
    try:
        exec(compile(CODE, "<cell>", "exec"), names)
    finally:
        (recording,) = source.stop(CELL, {}, None)
        source.close()
    return analyse(recording).report


def test_the_levels_are_those_of_the_counters():
    torch.cuda.reset_peak_memory_stats()
    report = measured(AcceleratorSource(TorchBackend("cuda")))
    assert report.before.allocated <= report.peak.allocated == torch.cuda.max_memory_allocated()
    assert "lines" not in report.unknown
    assert report.peak.reserved == torch.cuda.max_memory_reserved()
    assert report.device.total == torch.cuda.get_device_properties(0).total_memory


def test_the_lines_are_those_of_the_history():
    measured(AcceleratorSource(TorchBackend("cuda")))  # cuBLAS has its workspaces from here on
    torch.cuda.empty_cache()
    seen = measured(AcceleratorSource(TorchBackend("cuda")))
    torch.cuda.empty_cache()
    true = measured(CudaSource())
    assert seen.peak.allocated == true.peak.allocated
    assert {line.number: line.net for line in seen.lines} == {
        line.number: line.net for line in true.lines
    }
    without = {Category.OTHER, Category.WORKSPACE}  # whose memory it is, the history alone tells
    assert {kind: size for kind, size in seen.at_end.items() if kind not in without} == {
        kind: size for kind, size in true.at_end.items() if kind not in without
    }
