"""torch.cuda.memory_stats(): keys, and numbers worked out by hand."""

from __future__ import annotations

from gpumem_magic.allocator.caching import CachingAllocator, SimulatedDriver

MIB, GIB = 1 << 20, 1 << 30
BY_POOL = (
    *("active", "active_bytes", "allocated_bytes", "allocation", "inactive_split"),
    *("inactive_split_bytes", "requested_bytes", "reserved_bytes", "segment"),
)
SINGLE = (
    *("max_split_size", "num_alloc_retries", "num_device_alloc", "num_device_free", "num_ooms"),
    "num_sync_all_streams",
)


def numbers(stats, name):
    return tuple(stats[f"{name}.{part}"] for part in ("current", "peak", "allocated", "freed"))


def test_keys_are_those_of_torch_in_its_order():
    stats = CachingAllocator(SimulatedDriver(GIB)).stats()
    parts = ("allocated", "current", "freed", "peak")
    expected = {
        f"{name}.{pool}.{part}"
        for name in BY_POOL
        for pool in ("all", "small_pool", "large_pool")
        for part in parts
    }
    expected |= {
        f"oversize_{kind}.{part}" for kind in ("allocations", "segments") for part in parts
    }
    expected |= set(SINGLE)
    assert list(stats) == sorted(expected)
    assert stats.pop("max_split_size") == -1
    assert set(stats.values()) == {0}


def test_every_counter_has_level_peak_and_sums():
    # GIVEN 5 MiB and 3 MiB in one segment of 20 MiB, 700 bytes in one of 2 MiB; the first is freed
    allocator = CachingAllocator(SimulatedDriver(GIB))
    first = allocator.malloc(5 * MIB)
    allocator.malloc(3 * MIB)
    allocator.malloc(700)
    allocator.free(first)
    stats = allocator.stats()
    assert numbers(stats, "allocation.all") == (2, 3, 3, 1)
    assert numbers(stats, "allocation.large_pool") == (1, 2, 2, 1)
    assert numbers(stats, "allocated_bytes.all") == (
        3 * MIB + 1024,
        8 * MIB + 1024,
        8 * MIB + 1024,
        5 * MIB,
    )
    assert numbers(stats, "requested_bytes.small_pool") == (700, 700, 700, 0)
    assert numbers(stats, "active_bytes.large_pool") == (3 * MIB, 8 * MIB, 8 * MIB, 5 * MIB)
    assert numbers(stats, "segment.all") == (2, 2, 2, 0)
    assert numbers(stats, "reserved_bytes.all") == (22 * MIB, 22 * MIB, 22 * MIB, 0)
    # free pieces: 15 MiB, of which 3 are taken; then 5 more come back
    assert numbers(stats, "inactive_split.large_pool") == (2, 2, 2, 0)
    assert numbers(stats, "inactive_split_bytes.large_pool") == (
        17 * MIB,
        17 * MIB,
        20 * MIB,
        3 * MIB,
    )
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (2, 0)


def test_free_pieces_are_counted_once_however_they_join():
    allocator = CachingAllocator(SimulatedDriver(GIB))
    first, second, third = (allocator.malloc(4 * MIB) for _ in range(3))
    levels = []
    for address in (first, third, second):
        allocator.free(address)
        levels.append(numbers(allocator.stats(), "inactive_split.all"))
    # 4 and 8 MiB free; then 4 and 12; then the segment is whole, and no piece of it is split off
    assert levels == [(2, 2, 2, 0), (2, 2, 2, 0), (0, 2, 2, 2)]
    assert numbers(allocator.stats(), "inactive_split_bytes.all")[0] == 0


def test_peaks_start_anew_at_the_level_of_now():
    allocator = CachingAllocator(SimulatedDriver(GIB))
    held = allocator.malloc(30 * MIB)
    allocator.free(allocator.malloc(50 * MIB))
    assert allocator.stats()["allocated_bytes.all.peak"] == 80 * MIB
    allocator.reset_peaks()
    assert allocator.stats()["allocated_bytes.all.peak"] == 30 * MIB
    assert allocator.stats()["reserved_bytes.all.peak"] == 80 * MIB
    allocator.free(held)
    assert allocator.stats()["allocated_bytes.all.peak"] == 30 * MIB


def test_running_sums_start_anew_and_levels_stay():
    allocator = CachingAllocator(SimulatedDriver(GIB))
    held = allocator.malloc(30 * MIB)
    allocator.free(allocator.malloc(50 * MIB))
    allocator.empty_cache()
    allocator.reset_accumulated()
    stats = allocator.stats()
    assert numbers(stats, "allocated_bytes.all") == (30 * MIB, 80 * MIB, 0, 0)
    assert stats["num_sync_all_streams"] == stats["num_device_free"] == 0
    allocator.free(held)
    assert numbers(allocator.stats(), "allocated_bytes.all") == (0, 80 * MIB, 0, 30 * MIB)


def test_what_waits_for_a_stream_is_active_and_not_allocated():
    allocator = CachingAllocator(SimulatedDriver(GIB))
    allocator.streams_busy = True
    waiting = allocator.malloc(30 * MIB)
    allocator.record_stream(waiting, 1)
    allocator.free(waiting)
    allocator.free(allocator.malloc(50 * MIB))
    stats = allocator.stats()
    assert numbers(stats, "allocated_bytes.all") == (0, 50 * MIB, 80 * MIB, 80 * MIB)
    assert numbers(stats, "active_bytes.all") == (30 * MIB, 80 * MIB, 80 * MIB, 50 * MIB)
    allocator.synchronize()
    assert numbers(allocator.stats(), "active.all") == (0, 2, 2, 2)
