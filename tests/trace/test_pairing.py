from __future__ import annotations

from gpumem_magic.trace.pairing import pair_events


def lives_of(recording):
    lives = pair_events(recording.events, recording.initial)
    return list(
        zip(lives.size.tolist(), lives.birth.tolist(), lives.death.tolist(), strict=True)
    ), lives.of_event.tolist()


def test_a_block_dies_with_the_next_free_at_its_address(script):
    s = script()
    s.initial("old", 512)
    s.alloc("a", 1024, at=4096)
    s.free("a")
    s.alloc("b", 2048, at=4096)
    s.free("old")
    blocks, of_event = lives_of(s.recording())
    assert blocks == [(512, -1, 3), (1024, 0, 1), (2048, 2, 4)]
    assert of_event == [1, 1, 2, 0]


def test_frees_without_a_birth_and_births_on_top_of_a_block_are_survived(script):
    s = script()
    s.live["unseen"] = (4096, 512)
    s.free("unseen")
    s.alloc("a", 1024, at=8192)
    s.alloc("b", 2048, at=8192)  # the free of "a" was lost
    blocks, of_event = lives_of(s.recording())
    assert blocks == [(1024, 1, 2), (2048, 2, 3)]
    assert of_event == [-1, 0, 1]


def test_segments_bear_no_blocks(script):
    s = script()
    where = s.segment(2 << 20)
    s.alloc("a", 512, at=where)
    assert lives_of(s.recording()) == ([(512, 1, 2)], [-1, 0])


def test_alive_after_an_event(script):
    s = script()
    s.initial("old", 512)
    s.alloc("a", 512)
    s.free("old")
    recording = s.recording()
    lives = pair_events(recording.events, recording.initial)
    assert [lives.alive(event).tolist() for event in (-1, 0, 1)] == [[0], [0, 1], [1]]
