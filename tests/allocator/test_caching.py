"""The caching allocator's policy on sequences small enough to work out by hand."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gpumem_magic.allocator.caching import (
    AllocationFailed,
    CachingAllocator,
    SimulatedDriver,
)
from gpumem_magic.allocator.settings import Settings
from gpumem_magic.values.recording import Action

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def allocator_of(total=GIB, settings="", **driver):
    return CachingAllocator(SimulatedDriver(total, **driver), Settings.parse(settings))


def states(allocator):
    return [[(b.size, b.state) for b in segment.blocks] for segment in allocator.snapshot()]


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, KIB, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what is left over is not more than 1 MiB: kept as slack
        (11 * MIB - 1, 12 * MIB, 12 * MIB),
        (21 * MIB + 512, 22 * MIB, 22 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(requested, block, segment):
    allocator = allocator_of()
    address = allocator.malloc(requested)
    assert allocator.size_of(address) == allocator.allocated == allocator.active == block
    assert allocator.requested == requested
    assert allocator.reserved == segment


def test_a_freed_block_is_used_again_and_nothing_is_returned_to_the_device():
    allocator = allocator_of()
    first = allocator.malloc(30 * MIB)
    allocator.free(first)
    assert (allocator.allocated, allocator.reserved) == (0, 30 * MIB)
    assert allocator.malloc(30 * MIB) == first


def test_the_smallest_free_block_that_fits_is_taken_and_of_equals_the_lowest():
    allocator = allocator_of()
    blocks = {size: allocator.malloc(size * MIB) for size in (40, 20, 30)}
    twin = allocator.malloc(20 * MIB)
    for address in (*blocks.values(), twin):
        allocator.free(address)
    assert allocator.malloc(20 * MIB) == min(blocks[20], twin)
    assert allocator.malloc(20 * MIB) == max(blocks[20], twin)
    assert allocator.malloc(20 * MIB) == blocks[30]


def test_of_equals_that_of_the_oldest_segment_is_taken_in_later_releases():
    allocator = CachingAllocator(SimulatedDriver(GIB), oldest_first=True)
    whole, halved, third = (allocator.malloc(size * MIB) for size in (20, 40, 20))
    assert whole > halved > third  # the driver places segments below each other
    allocator.free(halved)
    kept, half = allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)
    for address in (third, half, whole):
        allocator.free(address)
    assert [allocator.malloc(20 * MIB) for _ in range(3)] == [whole, half, third]
    assert kept == halved


def test_a_large_block_is_split_only_where_more_than_one_mebibyte_is_left():
    allocator = allocator_of()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.free(allocator.malloc(19 * MIB))
    assert states(allocator) == [[(20 * MIB, "inactive")]]
    allocator.malloc(19 * MIB - 512)
    assert states(allocator) == [[(19 * MIB - 512, "active_allocated"), (MIB + 512, "inactive")]]


def test_neighbours_join_on_both_sides_when_they_are_free():
    allocator = allocator_of()
    left, middle, right = (allocator.malloc(4 * MIB) for _ in range(3))
    allocator.free(left)
    allocator.free(right)
    assert [size for size, _ in states(allocator)[0]] == [4 * MIB, 4 * MIB, 12 * MIB]
    allocator.free(middle)
    assert states(allocator) == [[(20 * MIB, "inactive")]]


def test_small_and_large_requests_never_share_a_segment():
    allocator = allocator_of()
    allocator.free(allocator.malloc(5 * MIB))
    allocator.malloc(MIB)
    assert {(s.pool, s.size) for s in allocator.snapshot()} == {
        ("large", 20 * MIB),
        ("small", 2 * MIB),
    }


def test_streams_have_pools_of_their_own():
    allocator = allocator_of()
    first = allocator.malloc(30 * MIB, stream=0)
    allocator.free(first)
    assert allocator.malloc(30 * MIB, stream=7) != first
    assert allocator.reserved == 60 * MIB


def test_a_block_used_by_another_stream_waits_until_that_is_done():
    # GIVEN a block that a busy stream uses too
    allocator = allocator_of()
    allocator.streams_busy = True
    address = allocator.malloc(30 * MIB)
    allocator.record_stream(address, 1)
    allocator.record_stream(address, 2)
    # WHEN it is freed
    allocator.free(address)
    # THEN it is not allocated any more, but still active, and cannot be handed out
    assert (allocator.allocated, allocator.active, allocator.requested) == (
        0,
        30 * MIB,
        30 * MIB,
    )
    assert states(allocator) == [[(30 * MIB, "active_pending_free")]]
    other = allocator.malloc(30 * MIB)
    assert other != address
    # UNTIL the streams are done
    allocator.synchronize()
    assert allocator.active == 30 * MIB
    assert allocator.malloc(30 * MIB) == address


def test_a_stream_that_is_not_busy_is_done_by_the_next_malloc():
    allocator = allocator_of()
    address = allocator.malloc(30 * MIB)
    allocator.record_stream(address, 1)
    allocator.record_stream(address, 0)  # its own stream: nothing to wait for
    allocator.free(address)
    assert allocator.malloc(30 * MIB) == address


def test_what_is_cached_for_a_stream_that_is_kept_stays():
    allocator = CachingAllocator(SimulatedDriver(40 * MIB))
    allocator.keep(-1)
    for stream in (0, -1):
        allocator.free(allocator.malloc(12 * MIB, stream))
    allocator.empty_cache()
    assert allocator.reserved == 12 * MIB
    with pytest.raises(AllocationFailed):
        allocator.malloc(30 * MIB)
    allocator.let_go(-1)
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 30 * MIB


def test_empty_cache_returns_whole_segments_only():
    allocator = allocator_of()
    kept, whole = allocator.malloc(5 * MIB), allocator.malloc(30 * MIB)
    allocator.free(whole)
    allocator.empty_cache()
    assert allocator.reserved == allocator.driver.used == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved == allocator.driver.used == 0
    assert allocator.snapshot() == []


def test_a_full_device_makes_the_cache_be_released_and_the_request_be_repeated():
    allocator = allocator_of(100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)
    assert allocator.reserved == 80 * MIB


def test_out_of_memory_carries_the_facts_and_torchs_text():
    # GIVEN a 1 GiB device with 100 MiB of context and 200 MiB in other processes
    allocator = allocator_of(context=100 * MIB, others=200 * MIB)
    allocator.malloc(3 * MIB)
    allocator.malloc(500 * MIB)
    # WHEN 1 GiB more is asked for
    with pytest.raises(AllocationFailed) as raised:
        allocator.malloc(GIB)
    # THEN every number follows from that: 1024 - 100 - 200 - 20 - 500 = 204 MiB are free
    failed = raised.value.refusal
    assert (failed.requested, failed.segment, failed.free) == (GIB, GIB, 204 * MIB)
    assert (failed.allocated, failed.reserved) == (503 * MIB, 520 * MIB)
    assert str(raised.value) == (
        "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of "
        "1024.00 MiB of which 204.00 MiB is free. Including non-PyTorch memory, this process has "
        "620.00 MiB memory in use. Of the allocated memory 503.00 MiB is allocated by PyTorch, and "
        "17.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/"
        "stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def test_out_of_memory_names_the_segment_and_not_the_request():
    allocator = allocator_of(10 * MIB)
    with pytest.raises(AllocationFailed, match=r"Tried to allocate 20\.00 MiB"):
        allocator.malloc(3 * MIB)
    with pytest.raises(AllocationFailed, match=r"Tried to allocate 1\.50 GiB"):
        allocator.malloc(3 * GIB // 2)


def test_life_goes_on_after_out_of_memory():
    allocator = allocator_of(100 * MIB)
    held = allocator.malloc(80 * MIB)
    with pytest.raises(AllocationFailed):
        allocator.malloc(40 * MIB)
    assert (allocator.allocated, allocator.reserved) == (80 * MIB, 80 * MIB)
    allocator.free(held)
    allocator.malloc(90 * MIB)
    assert allocator.reserved == 90 * MIB


def test_a_memory_fraction_limits_what_is_reserved_and_is_named_in_the_text():
    allocator = allocator_of()
    allocator.set_memory_fraction(0.25)
    allocator.malloc(200 * MIB)
    with pytest.raises(AllocationFailed, match=r"in use\. 256\.00 MiB allowed; Of the allocated"):
        allocator.malloc(60 * MIB)
    allocator.malloc(40 * MIB)
    with pytest.raises(AllocationFailed):
        allocator.malloc(3 * MIB)  # it would fit, but not the segment of 20 MiB that it takes
    allocator.set_memory_fraction(1)
    allocator.malloc(60 * MIB)
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="invalid fraction"):
            allocator.set_memory_fraction(wrong)


def test_memory_taken_by_others_meanwhile_is_missed():
    allocator = allocator_of()
    allocator.driver.others = 900 * MIB
    with pytest.raises(AllocationFailed, match=r"of which 124\.00 MiB is free"):
        allocator.malloc(200 * MIB)


def test_wrong_calls_are_refused():
    allocator = allocator_of()
    with pytest.raises(ValueError, match="0 bytes"):
        allocator.malloc(0)
    address = allocator.malloc(1)
    allocator.free(address)
    with pytest.raises(ValueError, match="no block"):
        allocator.free(address)


def test_events_tell_everything_that_happened():
    events = []
    allocator = CachingAllocator(
        SimulatedDriver(30 * MIB), on_event=lambda *event: events.append(event)
    )
    address = allocator.malloc(700)
    allocator.free(address)
    allocator.empty_cache()
    with pytest.raises(AllocationFailed):
        allocator.malloc(50 * MIB - 1)
    assert events == [
        (Action.SEGMENT_ALLOC, address, 2 * MIB, 2 * MIB),
        (Action.ALLOC, address, KIB, 700),
        (Action.FREE, address, KIB, 700),
        (Action.FREE_COMPLETED, address, KIB, 700),
        (Action.SEGMENT_FREE, address, 2 * MIB, 2 * MIB),
        (Action.OOM, 0, 50 * MIB, 50 * MIB - 1),
    ]
    # AND the listener may be taken away
    allocator.on_event = None
    allocator.malloc(1)
    assert len(events) == 6


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "max_split_size_mb:30",
        "expandable_segments:True",
        "roundup_power2_divisions:8",
        "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8",
    ],
)
def test_random_use_keeps_the_books(settings):
    """Blocks never overlap, counters are what the snapshot adds up to, all can be given back."""
    rng = random.Random(11)
    allocator = allocator_of(600 * MIB, settings)
    live = {}
    for step in range(3000):
        if live and rng.random() < 0.48:
            allocator.free(live.popitem()[0] if rng.random() < 0.3 else _pop(live, rng))
        else:
            size = int(2 ** rng.uniform(0, 26.5))
            try:
                live[allocator.malloc(size, rng.choice((0, 0, 3)))] = size
            except AllocationFailed:
                continue
        if step % 50 == 0:
            check_books(allocator, live)
    for address in live:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.allocated == allocator.reserved == allocator.driver.used == 0
    assert allocator.snapshot() == []


def _pop(live, rng):
    address = rng.choice(list(live))
    del live[address]
    return address


def check_books(allocator, live):
    segments = allocator.snapshot()
    blocks = [block for segment in segments for block in segment.blocks]
    active = {b.address: b for b in blocks if b.state == "active_allocated"}
    assert {address: block.requested for address, block in active.items()} == live
    assert sum(block.size for block in active.values()) == allocator.allocated
    assert sum(live.values()) == allocator.requested
    assert sum(segment.size for segment in segments) == allocator.reserved
    assert allocator.reserved == allocator.driver.used
    ends = [(b.address, b.address + b.size) for b in sorted(blocks, key=lambda b: b.address)]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    for segment in segments:
        free = [block.state == "inactive" for block in segment.blocks]
        assert not any(a and b for a, b in pairwise(free)), "free neighbours"
