"""The life of storages on the card: placed once, freed at their death, whoever causes it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from gpumem_magic.allocator.caching import CachingAllocator, SimulatedDriver
from gpumem_magic.allocator.settings import Settings
from gpumem_magic.virtual.storages import Storages, is_pinned, pinned, storage_id

MIB = 1 << 20


@pytest.fixture
def storages():
    return Storages(CachingAllocator(SimulatedDriver(64 * MIB), Settings.parse("")))


def test_a_storage_is_placed_once_for_all_its_views(storages):
    x = torch.ones(1000)
    storages.place(x)
    storages.place(x[10:])
    assert x[500:].view(10, 50) in storages
    assert torch.ones(1000) not in storages
    assert storages.allocator.allocated == 4096
    assert storages.locate(x) == storages.locate(x[1:]) == storages.addresses[storage_id(x)]


def test_it_dies_with_its_last_view(storages):
    x = torch.ones(1000)
    storages.place(x)
    view = x[10:]
    del x
    assert storages.allocator.allocated == 4096
    del view
    assert (storages.allocator.allocated, storages.addresses) == (0, {})
    assert list(storages.living()) == []


def test_empty_storages_take_no_block(storages):
    x = torch.ones(0)
    storages.place(x)
    assert x in storages
    assert storages.locate(x) is None
    assert storages.allocator.allocated == 0


def test_a_grown_storage_moves_and_a_shrunken_one_stays(storages):
    x = torch.ones(1000)
    storages.place(x)
    first = storages.locate(x)
    x.resize_(10)
    storages.resized(x)
    assert storages.locate(x) == first
    x.resize_(5000)
    storages.resized(x)
    assert storages.allocator.allocated == 20480
    assert storages.allocator.size_of(storages.locate(x)) == 20480


class DyingDriver(SimulatedDriver):
    """A driver under whose hands the garbage collector finds dead storages."""

    cycle = None

    def malloc(self, size):
        self.cycle = None
        gc.collect()
        return super().malloc(size)


def test_storages_may_die_while_the_allocator_works():
    storages = Storages(CachingAllocator(DyingDriver(64 * MIB), Settings.parse("")))
    x = torch.ones(1000)
    storages.place(x)
    cycle = [x]
    cycle.append(cycle)
    storages.allocator.driver.cycle = cycle
    del x, cycle
    # WHEN a new segment is made, in the middle of which x dies
    y = torch.ones(MIB)
    storages.place(y)
    # THEN both are accounted for
    assert storages.allocator.allocated == 4 * MIB
    assert [storage.nbytes() for storage in storages.living()] == [y.nbytes]


def test_out_of_memory_names_the_segment_and_leaves_everything_usable(storages):
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 100\.00 MiB") as error:
        storages.malloc(100 * MIB)
    assert error.value.__context__ is None
    assert storages.refused_segment == 100 * MIB
    storages.release(storages.malloc(3 * MIB))
    assert storages.allocator.allocated == 0


def test_nothing_holds_a_storage_alive(storages):
    x = torch.ones(1000)
    storages.place(x)
    alive = weakref.ref(x)
    del x
    assert alive() is None


def test_pinned_memory_is_remembered_by_its_storage():
    x = torch.ones(4)
    assert not is_pinned(x)
    assert is_pinned(pinned(x)[2:])
