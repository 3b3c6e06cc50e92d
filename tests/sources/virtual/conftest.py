"""A virtual Tesla T4 for the code of a test."""

from __future__ import annotations

import gc

import pytest
import torch

from gpumem_magic.sources.virtual.catalog import lookup
from gpumem_magic.sources.virtual.gpu import VirtualGPU
from gpumem_magic.sources.virtual.settings import Settings


@pytest.fixture
def gpu():
    """A T4 that is on for the test's own code, with the default settings of the allocator."""
    torch.manual_seed(0)
    with VirtualGPU(lookup("T4"), Settings.parse("")) as card:
        yield card


@pytest.fixture
def allocated(gpu):
    """Bytes that tensors hold on the card now; the workspaces of libraries do not count."""

    def allocated():
        gc.collect()
        workspaces = sum(map(gpu.allocator.size_of, gpu.scratch.held.values()))
        return gpu.allocator.allocated - workspaces

    return allocated


@pytest.fixture
def blocks(gpu):
    """Sizes that were asked for since the last call, "+" for taken and "-" for given back."""
    seen = []

    def hear(action, address, size, requested):
        if action in (0, 1):
            seen.append(requested if action == 0 else -requested)

    def blocks():
        found = list(seen)
        seen.clear()
        return found

    gpu.allocator.on_event = hear
    yield blocks
    gpu.allocator.on_event = None
