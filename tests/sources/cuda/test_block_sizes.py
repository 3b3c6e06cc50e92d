from __future__ import annotations

import pytest

from gpumem_magic.allocator.segments import segment_size
from gpumem_magic.allocator.snapshot import IN_USE, INACTIVE, PENDING, BlockState, Segment
from gpumem_magic.sources.cuda.block_sizes import BlockReplay, round_size
from gpumem_magic.values.recording import LARGE_SEGMENT, Action, Rules

MIB = 1 << 20
A, F, C = Action.ALLOC, Action.FREE, Action.FREE_COMPLETED
NEW, GONE = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE
MAP, UNMAP, OOM = Action.SEGMENT_MAP, Action.SEGMENT_UNMAP, Action.OOM


def replayed(events, segments=(), rules=Rules()):  # noqa: B008 - frozen
    replay = BlockReplay(segments, rules)
    actions, addresses, sizes = zip(*events, strict=True)
    return replay, list(replay.sizes(actions, addresses, sizes))


@pytest.mark.parametrize(
    ("requested", "divisions", "rounded"),
    [
        (1, 0, 512),
        (512, 0, 512),
        (513, 0, 1024),
        (3 * MIB + 1, 0, 3 * MIB + 512),
        # 1200 KiB lies between 1 and 2 MiB: the next of four steps of 256 KiB is 1280
        (1200 << 10, 4, 1280 << 10),
        (2 * MIB, 4, 2 * MIB),
        (1024, 4, 1024),
    ],
)
def test_round_size(requested, divisions, rounded):
    assert round_size(requested, Rules(divisions=(divisions,) * 16)) == rounded


def test_divisions_are_those_of_the_power_of_two_below():
    rules = Rules(divisions=(0, 2, *(0,) * 14))
    assert round_size(MIB + 1, rules) == MIB + 512
    assert round_size(2 * MIB + 1, rules) == 3 * MIB


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
    ],
)
def test_segment_size(rounded, segment):
    assert segment_size(rounded, LARGE_SEGMENT) == segment


def test_a_large_block_keeps_a_remainder_of_at_most_one_mebibyte():
    # GIVEN 11 MiB in a new segment of 12 MiB, and the same in one of 13 MiB + 512 bytes
    _, sizes = replayed(
        [
            (NEW, 0, 12 * MIB),
            (A, 0, 11 * MIB),
            (NEW, 64 * MIB, 12 * MIB + 512),
            (A, 64 * MIB, 11 * MIB),
        ]
    )
    assert sizes[1] == 12 * MIB
    assert sizes[3] == 11 * MIB


def test_small_blocks_split_to_512_bytes():
    replay, sizes = replayed([(NEW, 0, 2 * MIB), (A, 0, 100), (A, 512, MIB), (A, 512 + MIB, 200)])
    assert sizes == [2 * MIB, 512, MIB, 512]
    assert replay.misses == 0


def test_freed_neighbours_merge_and_are_found_as_one():
    segment = [(NEW, 0, 20 * MIB), (A, 0, 2 * MIB), (A, 2 * MIB, 2 * MIB), (A, 4 * MIB, 2 * MIB)]
    free = [(F, 0, 2 * MIB), (C, 0, 2 * MIB), (F, 2 * MIB, 2 * MIB), (C, 2 * MIB, 2 * MIB)]
    # 3.5 MiB fit into the 4 MiB of the two; half a mebibyte is not split off
    replay, sizes = replayed([*segment, *free, (A, 0, 7 * MIB // 2)])
    assert sizes[-1] == 4 * MIB
    assert replay.misses == 0
    assert replay.allocated == 6 * MIB
    assert replay.alive == {0, 4 * MIB}


def test_segments_that_touch_do_not_merge():
    events = [(NEW, 0, 12 * MIB), (NEW, 12 * MIB, 12 * MIB), (A, 0, 12 * MIB), (F, 0, 12 * MIB)]
    events += [(C, 0, 12 * MIB), (A, 12 * MIB, 12 * MIB), (A, 0, 12 * MIB), (GONE, 0, 12 * MIB)]
    replay, sizes = replayed(events)
    assert sizes[5:7] == [12 * MIB, 12 * MIB]
    assert replay.misses == 0


def test_a_block_that_another_stream_uses_is_free_only_when_completed():
    events = [(NEW, 0, 20 * MIB), (A, 0, 2 * MIB), (F, 0, 2 * MIB), (A, 2 * MIB, 2 * MIB)]
    replay, sizes = replayed([*events, (C, 0, 2 * MIB), (A, 0, 2 * MIB)])
    assert sizes == [20 * MIB, *(2 * MIB,) * 5]
    assert replay.misses == 0


def test_oversize_blocks_are_not_split():
    rules = Rules(max_split_size=32 * MIB)
    _, sizes = replayed([(NEW, 0, 100 * MIB), (A, 0, 90 * MIB)], rules=rules)
    assert sizes == [100 * MIB, 100 * MIB]
    _, sizes = replayed([(NEW, 0, 100 * MIB), (A, 0, 30 * MIB)], rules=rules)
    assert sizes == [100 * MIB, 30 * MIB]


def test_expandable_segments_split_large_blocks_to_512_bytes_too():
    events = [(MAP, 0, 20 * MIB), (A, 0, 20 * MIB - 512), (MAP, 20 * MIB, 20 * MIB)]
    replay, sizes = replayed([*events, (A, 20 * MIB - 512, 20 * MIB)])
    assert sizes == [20 * MIB, 20 * MIB - 512, 20 * MIB, 20 * MIB]
    assert replay.misses == 0


def test_unmapping_cuts_pages_out_of_a_free_block():
    events = [(MAP, 0, 60 * MIB), (A, 0, 60 * MIB), (F, 0, 60 * MIB), (C, 0, 60 * MIB)]
    replay, sizes = replayed(
        [*events, (UNMAP, 20 * MIB, 20 * MIB), (A, 40 * MIB, 20 * MIB), (A, 0, 20 * MIB)]
    )
    assert sizes[-2:] == [20 * MIB, 20 * MIB]
    assert replay.misses == 0


def test_the_state_at_the_start_counts():
    blocks = (
        BlockState(0, 3 * MIB, 2 * MIB + 1, IN_USE),
        BlockState(3 * MIB, MIB, MIB, PENDING),
        BlockState(4 * MIB, 16 * MIB, 0, INACTIVE),
    )
    segment = Segment(0, 20 * MIB, expandable=False, blocks=blocks)
    replay = BlockReplay([segment], Rules())
    assert replay.allocated == 3 * MIB
    events = [(C, 3 * MIB, MIB), (A, 3 * MIB, 17 * MIB - 512), (F, 0, 2 * MIB + 1)]
    assert list(replay.sizes(*zip(*events, strict=True))) == [MIB, 17 * MIB, 3 * MIB]
    assert replay.misses == 0


def test_what_was_free_when_memory_ran_out():
    replay, _ = replayed([(NEW, 0, 20 * MIB), (A, 0, 2 * MIB), (Action.OOM, 0, 50 * MIB)])
    assert replay.free_at_oom == (18 * MIB, 18 * MIB)


def test_what_does_not_fit_is_counted_and_nothing_is_freed_twice():
    replay, sizes = replayed([(A, 512, 100), (F, 4096, 700)])
    assert sizes == [512, 0]
    assert replay.misses == 2


def test_what_is_freed_where_something_is_free_already_does_no_harm():
    doubled = [(NEW, 0, 4 * MIB), (NEW, 0, 2 * MIB), (A, 0, 2 * MIB)]
    replay, _ = replayed([*doubled, (A, 4 * MIB, MIB), (C, 4 * MIB, MIB), (OOM, 0, MIB)])
    assert replay.misses == 1
    assert replay.free_at_oom == (MIB, MIB)
