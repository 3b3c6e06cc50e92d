"""When the rounds of a loop repeat: judged by the allocator's events alone."""

from __future__ import annotations

import pytest

from gpumem_magic.dryrun.running.rounds import Rounds
from gpumem_magic.values.recording import Action

STEADY = "ask for the same sizes in the same order, without new segments"


class Loop:
    """A loop whose rounds make the events that they are given."""

    def __init__(self, least=0):
        self.events = []
        self.rounds = Rounds(lambda: self.events, least)
        self.rounds.begin()

    def round(self, *rows):
        self.events += [(*row, len(self.events), False, 0.0) for row in rows]  # stack, time differ
        self.rounds.close()
        return self.rounds.repetition()


def block(address, requested=1000, size=1024):
    """A block that is taken and given back."""
    return (Action.ALLOC, address, size, requested), (Action.FREE, address, size, requested)


def segment(address, action=Action.SEGMENT_ALLOC):
    return (action, address, 2 << 20, 2 << 20)


def test_a_round_that_repeats_the_one_before():
    loop = Loop()
    assert loop.round(segment(0), *block(0), *block(4096)) == ""
    assert loop.round(*block(4096)) == ""
    assert loop.round(*block(4096)) == "repeat the last one event for event"


def test_rounds_without_events_repeat():
    loop = Loop()
    assert loop.round() == ""
    assert loop.round() == "repeat the last one event for event"


def test_what_came_before_the_loop_is_no_round():
    loop = Loop()
    loop.events += [(*row, 0, False, 0.0) for row in block(0)]
    loop.rounds.begin()
    assert loop.round(*block(4096)) == ""
    assert loop.round(*block(4096)) == "repeat the last one event for event"


@pytest.mark.parametrize(
    "other",
    [
        block(8192),
        block(4096, requested=5000, size=5120),
        block(4096)[:1],
        (*block(4096), *block(4096)),
        tuple(reversed(block(4096))),
    ],
    ids=["another address", "another size", "fewer", "more", "another order"],
)
def test_a_round_that_does_something_else(other):
    loop = Loop()
    assert [loop.round(*rows) for rows in (block(4096), other, block(4096), other, other)] == [
        "",
        "",
        "",
        "repeat the last 2 event for event",
        "repeat the last one event for event",
    ]


@pytest.mark.parametrize("period", range(2, 9))
def test_addresses_that_take_turns(period):
    loop = Loop()
    told = [loop.round(*block(4096 * (i % period), 1000 * (i % period))) for i in range(2 * period)]
    assert told[:-1] == [""] * (2 * period - 1)
    assert told[-1] == f"repeat the last {period} event for event"


def test_a_period_of_nine_is_not_sought():
    loop = Loop()
    assert not any(loop.round(*block(4096 * (i % 9), 1000 * (i % 9))) for i in range(40))


def test_six_rounds_with_the_same_requests_are_steady_wherever_their_blocks_lie():
    # GIVEN blocks that never lie where they lay; their sizes have other slack
    loop = Loop()
    told = [loop.round(*block(4096 * i, 1000, 1024 + 512 * i)) for i in range(6)]
    assert told == [""] * 5 + [STEADY]


@pytest.mark.parametrize(
    "action",
    [Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP],
)
def test_rounds_that_change_what_is_reserved_are_not_steady(action):
    loop = Loop()
    for i in range(5):
        assert loop.round(*block(4096 * i)) == ""
    assert loop.round(*block(4096 * 5), segment(1 << 30, action)) == ""
    # THEN six more rounds are needed
    told = [loop.round(*block(4096 * i)) for i in range(6, 12)]
    assert told == [""] * 5 + [STEADY]


def test_requests_that_grow_are_never_steady():
    loop = Loop()
    assert not any(loop.round(*block(4096 * i, 1000 + i)) for i in range(40))


def test_as_many_rounds_as_were_asked_for_are_made():
    loop = Loop(least=5)
    told = [loop.round(*block(4096)) for _ in range(6)]
    assert told == [""] * 4 + ["repeat the last one event for event"] * 2
