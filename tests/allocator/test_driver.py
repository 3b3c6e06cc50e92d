"""Where the simulated device places new memory."""

from __future__ import annotations

import pytest

from gpumem_magic.allocator.driver import SimulatedDriver
from gpumem_magic.units import GIB, KIB, MIB

TOP = 1 << 40


def _driver(total=GIB, **options):
    return SimulatedDriver(total, top=TOP, **options)


def test_each_new_range_lies_below_the_last():
    driver = _driver()
    # GIVEN three requests, of which the second is no multiple of a page
    addresses = [driver.malloc(size) for size in (20 * MIB, 3 * MIB + KIB, 2 * MIB)]
    # THEN each is at the end of what is free, in whole pages of 2 MiB
    assert addresses == [TOP - 20 * MIB, TOP - 24 * MIB, TOP - 26 * MIB]
    assert driver.used == 26 * MIB


def test_the_highest_gap_with_room_is_used_first_from_its_end():
    driver = _driver()
    addresses = [driver.malloc(20 * MIB) for _ in range(5)]
    # GIVEN gaps of 20 MiB at the second and the fourth
    for place in (3, 1):
        driver.release(addresses[place], 20 * MIB)
    assert driver.used == 60 * MIB
    # THEN 12 MiB go to the end of the higher, 12 MiB more to that of the lower, then all is full
    assert driver.malloc(12 * MIB) == addresses[1] + 8 * MIB
    assert driver.malloc(12 * MIB) == addresses[3] + 8 * MIB
    assert driver.malloc(12 * MIB) == addresses[4] - 12 * MIB
    assert driver.malloc(8 * MIB) == addresses[1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbouring_gaps_become_one(order):
    driver = _driver()
    addresses = [driver.malloc(20 * MIB) for _ in range(3)]
    driver.malloc(2 * MIB)
    # GIVEN that three neighbours are given back in any order
    for place in order:
        driver.release(addresses[place], 20 * MIB)
    # THEN 60 MiB find room where they were
    assert driver.malloc(60 * MIB) == addresses[2]


def test_what_does_not_fit_changes_nothing():
    driver = _driver(total=30 * MIB, context=4 * MIB)
    assert driver.malloc(28 * MIB) is None
    assert (driver.used, driver.free) == (0, 26 * MIB)
    assert driver.malloc(26 * MIB) == TOP - 26 * MIB


def test_a_reserved_range_holds_no_memory_and_is_handed_out_again():
    driver = _driver()
    address = driver.reserve(16 * GIB)
    assert driver.used == 0
    driver.unreserve(address, 16 * GIB)
    assert driver.reserve(16 * GIB) == address == TOP - 16 * GIB


def test_addresses_can_run_out():
    driver = SimulatedDriver(GIB, top=30 * MIB)
    driver.reserve(20 * MIB)
    with pytest.raises(MemoryError, match="address range of 20971520 bytes"):
        driver.reserve(20 * MIB)
