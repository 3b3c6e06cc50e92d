"""Storages that die while nobody waits for them."""

from __future__ import annotations

import sys

import pytest
import torch

from gpumem_magic.sources.collected import Deaths
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU


def lose_an_interrupt(monkeypatch, drop):
    """As one that comes when a storage dies: before the first instruction of what is called."""

    def interrupt(frame, event, argument):
        if frame.f_code is Deaths._died.__code__:
            raise KeyboardInterrupt

    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: dropped.append(told.exc_type))
    before = sys.getprofile()
    sys.setprofile(interrupt)
    try:
        drop()
    finally:
        sys.setprofile(before)
    assert dropped == [KeyboardInterrupt]


def test_a_death_that_an_interrupt_hid_is_told_once(monkeypatch):
    told = []
    deaths, storages = Deaths(told.append), [torch.UntypedStorage(8) for _ in range(2)]
    keys = [storage._cdata for storage in storages]
    for storage in storages:
        deaths.expect(storage)
    del storage
    lose_an_interrupt(monkeypatch, lambda: storages.pop(0))
    assert told == []
    deaths.catch_up()
    deaths.catch_up()
    assert told == keys[:1]
    storages.clear()
    assert told == keys
    assert not deaths


@pytest.mark.parametrize("size", [1 << 20, 64 << 20])
def test_its_memory_is_free_in_the_next_cell(monkeypatch, size):
    with VirtualGPU(lookup("T4")) as gpu:
        kept = [torch.empty(size, dtype=torch.uint8, device="cuda")]
        gpu.leave()
        lose_an_interrupt(monkeypatch, kept.clear)
        assert gpu.allocator.allocated == size
        gpu.enter()
        assert gpu.allocator.allocated == 0
