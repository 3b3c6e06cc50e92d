"""An accelerator that the test plays: torch's meta tensors, with an allocator of its own."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.accelerator.backend import Counters
from gpumem_magic.sources.accelerator.source import AcceleratorSource
from gpumem_magic.values.recording import Device, Reading

MIB = 1 << 20


class FakeAccelerator(TorchDispatchMode):
    """Gives each meta storage a block, rounded up; a matrix product takes `workspace` bytes besides
    and keeps `kept` more from its first call on. counts_peak: whether it has that counter."""

    kind = "meta"
    keeps_history = False

    def __init__(self, rounding=512, workspace=0, kept=0, counts_peak=True):
        super().__init__()
        self.rounding, self.workspace, self.kept = rounding, workspace, kept
        self.counts_peak = counts_peak
        self.allocated = self.peak = 0
        self.limit = 16 << 30
        self.known = {}

    def current(self):
        return 0

    def counters(self, index):
        if not self.counts_peak:
            return Counters(self.allocated)
        return Counters(self.allocated, self.allocated + 2 * MIB, self.peak)

    def read(self, index):
        counters = self.counters(index)
        unknown = dict.fromkeys(("device_used", "process_used"), "nobody tells")
        if counters.reserved is None:
            unknown["reserved"] = "it is not counted"
        return Reading(counters.allocated, counters.reserved, None, None, unknown)

    def describe(self, index):
        return Device("Fake", index, self.limit, (0, 0), virtual=False)

    def take(self, size):
        if self.allocated + size > self.limit:
            raise torch.OutOfMemoryError(
                f"XPU out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU 0 has a total "
                f"capacity of {self.limit / MIB:.2f} MiB."
            )
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.take(self.workspace + self.kept)
            self.allocated -= self.workspace
            self.kept = 0
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self.place(tensor.untyped_storage())
        return out

    def place(self, storage):
        key = storage._cdata
        if key in self.known or not storage.nbytes():
            return
        size = -(-storage.nbytes() // self.rounding) * self.rounding
        self.take(size)

        def gone(_):
            del self.known[key]
            self.allocated -= size

        self.known[key] = weakref.ref(storage, gone)


class Bench:
    """Runs code on a fake accelerator and measures it."""

    def __init__(self, **options):
        self.backend = FakeAccelerator(**options)
        self.source = AcceleratorSource(self.backend)

    def measured(self, run, names=None, cell=None):
        self.source.start(lambda: names if names is not None else {})
        error = None
        try:
            run()
        except RuntimeError as caught:
            error = caught
        (recording,) = self.source.stop(cell, {}, error)
        return recording


@pytest.fixture
def bench():
    """Makes benches, whose devices are there until the test ends."""
    gc.collect()  # what is alive of earlier tests would be on this device
    made = []

    def make(**options):
        bench = Bench(**options)
        bench.backend.__enter__()
        made.append(bench)
        return bench

    yield make
    for bench in reversed(made):
        bench.source.close()
        bench.backend.__exit__(None, None, None)
