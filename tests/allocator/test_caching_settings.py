"""PYTORCH_ALLOC_CONF: what is read, what is refused, and what each option does."""

from __future__ import annotations

import pytest

from gpumem_magic.allocator.caching import (
    AllocationFailed,
    CachingAllocator,
    SimulatedDriver,
)
from gpumem_magic.allocator.pools import round_size
from gpumem_magic.allocator.settings import UNLIMITED, Settings
from gpumem_magic.values.recording import Action

MIB, GIB = 1 << 20, 1 << 30


def allocator_of(settings, total=GIB):
    return CachingAllocator(SimulatedDriver(total), Settings.parse(settings))


def test_nothing_said_means_pytorchs_defaults():
    assert Settings.parse("") == Settings.from_environment({}) == Settings()
    assert Settings().max_split_size == UNLIMITED
    assert Settings().memory_fraction == 1.0


def test_all_options_are_read_with_spaces_anywhere():
    text = (
        "max_split_size_mb: 128, max_non_split_rounding_mb:40 ,garbage_collection_threshold:0.6,"
        "expandable_segments:True,large_segment_size_mb:32,per_process_memory_fraction:0.5,"
        "backend:native,release_lock_on_cudamalloc:True,pinned_num_register_threads:8"
    )
    assert Settings.parse(text) == Settings(
        max_split_size=128 * MIB,
        max_non_split_rounding=40 * MIB,
        garbage_collection_threshold=0.6,
        expandable_segments=True,
        large_segment_size=32 * MIB,
        memory_fraction=0.5,
    )


def test_the_new_environment_variable_comes_before_the_old_ones():
    old, new = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, {"PYTORCH_ALLOC_CONF": ""}
    assert Settings.from_environment(old).max_split_size == 64 * MIB
    assert Settings.from_environment({**old, **new}) == Settings()


def test_settings_changed_on_the_way_keep_what_pytorch_keeps():
    before = Settings.parse("expandable_segments:True,max_split_size_mb:64")
    after = Settings.parse("garbage_collection_threshold:0.5", before)
    assert after.expandable_segments
    assert after.max_split_size == UNLIMITED
    assert after.garbage_collection_threshold == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size_mb:19", "max_split_size_mb too small, must be >= 20"),
        ("max_split_size_mb:x", "whole number"),
        ("large_segment_size_mb:10", "too small"),
        ("garbage_collection_threshold:1.0", r"set it in \(0.0, 1.0\)"),
        ("garbage_collection_threshold:zero", "needs a number"),
        ("per_process_memory_fraction:1.5", r"\[0.0, 1.0\]"),
        ("expandable_segments:true", "'True' or 'False'"),
        ("roundup_power2_divisions:3", "power of 2"),
        ("roundup_power2_divisions:0", "power of 2"),
        ("roundup_power2_divisions:[3:4]", "power of 2"),
        ("roundup_power2_divisions:[4]", "size:divisions"),
        ("max_split_size:64", "Unrecognized key 'max_split_size'"),
        ("backend:cudaMallocAsync", "not simulated"),
        ("max_split_size_mb", "not a list of key:value"),
    ],
)
def test_what_is_wrong_is_refused_with_the_reason(text, message):
    with pytest.raises(ValueError, match=message):
        Settings.parse(text)


def test_divisions_by_size_fill_up_to_the_first_and_from_the_last_boundary():
    entries = Settings.parse("roundup_power2_divisions:[4:8,16:2,>:1]").roundup_power2_divisions
    # 1, 2 and 4 MiB: 8; 8 MiB: nothing said; 16 MiB: 2; above: 1
    assert entries == (8, 8, 8, 0, 2) + (1,) * 11
    assert Settings.parse("roundup_power2_divisions:4").roundup_power2_divisions == (4,) * 16


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        (1, 512),
        (1200, 1536),  # not above 512 * 4: a multiple of 512
        (2049, 2560),
        (3000, 3072),
        (2**20, 2**20),
        (2**20 + 1, 2**20 + 2**18),
        (5 * MIB + 1, 6 * MIB),
        (7 * MIB + 1, 8 * MIB),
    ],
)
def test_sizes_are_rounded_to_a_quarter_of_a_power_of_two(size, rounded):
    assert round_size(size, (4,) * 16) == rounded


def test_blocks_from_max_split_size_on_are_neither_split_nor_given_to_small_requests():
    allocator = allocator_of("max_split_size_mb:40")
    big = allocator.malloc(100 * MIB)
    allocator.free(big)
    assert allocator.malloc(30 * MIB) != big
    assert allocator.malloc(79 * MIB) != big, "100 MiB is 20 MiB or more above 79"
    assert allocator.malloc(81 * MIB) == big
    assert allocator.size_of(big) == 100 * MIB
    stats = allocator.stats()
    assert stats["max_split_size"] == 40 * MIB
    assert stats["oversize_allocations.current"] == 2
    assert stats["oversize_segments.current"] == 2


def test_with_max_split_size_only_as_many_oversize_blocks_are_released_as_needed():
    allocator = allocator_of("max_split_size_mb:40", total=300 * MIB)
    addresses = [allocator.malloc(size * MIB) for size in (50, 60, 70, 100)]
    for address in addresses:
        allocator.free(address)
    allocator.malloc(140 * MIB)  # 20 MiB are free: the two largest go, 170 MiB
    assert allocator.reserved == 250 * MIB
    assert allocator.stats()["num_alloc_retries"] == 0


def test_large_segment_size_is_what_middling_requests_take():
    allocator = allocator_of("large_segment_size_mb:32")
    allocator.malloc(5 * MIB)
    assert allocator.reserved == 32 * MIB


def test_garbage_collection_gives_the_oldest_blocks_back_first():
    # GIVEN a limit of 512 MiB, of which more than half is reserved; two blocks are free
    settings = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"
    allocator = allocator_of(settings)
    old, young, held = (allocator.malloc(100 * MIB) for _ in range(3))
    spare = allocator.malloc(2 * MIB)
    allocator.free(old)
    for _ in range(10):
        allocator.free(spare)
        spare = allocator.malloc(2 * MIB)
    allocator.free(young)
    released = []
    allocator.on_event = lambda action, address, *_: (
        released.append(address) if action is Action.SEGMENT_FREE else None
    )
    # WHEN a new segment is needed
    allocator.malloc(120 * MIB)
    # THEN the older one goes, and that is enough
    assert released == [old]
    assert allocator.size_of(held) == 100 * MIB


def test_garbage_collection_gives_all_blocks_of_average_age_back():
    settings = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"
    allocator = allocator_of(settings)
    addresses = [allocator.malloc(100 * MIB) for _ in range(3)]
    for address in addresses:
        allocator.free(address)
    allocator.malloc(120 * MIB)
    assert allocator.reserved == 120 * MIB
    assert allocator.stats()["num_alloc_retries"] == 0


def test_expandable_segments_grow_in_pages_and_leave_no_slack():
    allocator = allocator_of("expandable_segments:True")
    first = allocator.malloc(11 * MIB)
    assert (allocator.size_of(first), allocator.reserved) == (11 * MIB, 20 * MIB)
    # the second starts in the page of the first, which the segment grows around
    second = allocator.malloc(30 * MIB)
    assert (second, allocator.reserved) == (first + 11 * MIB, 60 * MIB)
    allocator.malloc(700)
    assert allocator.reserved == 62 * MIB
    segment = max(allocator.snapshot(), key=lambda segment: segment.size)
    assert (segment.expandable, segment.size) == (True, 60 * MIB)
    stats = allocator.stats()
    assert stats["segment.all.current"] == stats["inactive_split.all.peak"] == 0
    assert stats["reserved_bytes.small_pool.current"] == 2 * MIB


def test_expandable_segments_give_back_only_pages_that_are_wholly_free():
    allocator = allocator_of("expandable_segments:True")
    first, second, third = (allocator.malloc(30 * MIB) for _ in range(3))
    allocator.free(second)
    allocator.empty_cache()
    # 30..60 MiB were free; of the pages at 0, 20, 40, 60 and 80 MiB only the one at 40 is empty
    assert allocator.reserved == allocator.driver.used == 80 * MIB
    assert [s.size for s in allocator.snapshot()] == [40 * MIB, 40 * MIB]
    # the gap is filled first when memory is needed again
    assert allocator.malloc(25 * MIB) == second
    assert allocator.reserved == 100 * MIB
    for address in (first, second, third):
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert allocator.snapshot() == []


def test_expandable_segments_avoid_the_out_of_memory_that_fragments_cause():
    def interleave(allocator):
        addresses = [allocator.malloc(50 * MIB) for _ in range(18)]
        for address in addresses[::2]:
            allocator.free(address)
        allocator.malloc(120 * MIB)
        return [allocator.malloc(60 * MIB) for _ in range(3)]

    # plain segments: 450 MiB are free, but in pieces; they are all given back whole
    assert interleave(allocator_of(""))
    # small pieces in big segments cannot be given back
    plain, expandable = allocator_of(""), allocator_of("expandable_segments:True")
    for allocator in (plain, expandable):
        held = []
        for _ in range(8):
            address = allocator.malloc(100 * MIB)
            allocator.free(address)
            held.append(allocator.malloc(98 * MIB))
            held.append(allocator.malloc(2 * MIB))
        for address in held[::2]:
            allocator.free(address)
    with pytest.raises(AllocationFailed):
        plain.malloc(300 * MIB)
    assert expandable.malloc(300 * MIB)
    assert expandable.reserved <= GIB


def test_expandable_segments_turned_off_later_are_left_alone():
    allocator = allocator_of("expandable_segments:True")
    address = allocator.malloc(30 * MIB)
    allocator.free(address)
    allocator.settings = Settings.parse("expandable_segments:False", allocator.settings)
    other = allocator.malloc(30 * MIB)
    assert other != address
    assert [s.expandable for s in allocator.snapshot()].count(False) == 1
