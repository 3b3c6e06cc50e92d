"""A clone goes on as the original would, and neither hears of the other."""

from __future__ import annotations

import random

import pytest

from gpumem_magic.allocator.caching import CachingAllocator, SimulatedDriver, clone
from gpumem_magic.allocator.settings import Settings

GIB = 2**30


def churned(settings, steps=3000):
    """An allocator after many random steps, and what is alive."""
    chance = random.Random(1)
    allocator = CachingAllocator(SimulatedDriver(8 * GIB), Settings.parse(settings))
    alive = []
    for _ in range(steps):
        if alive and chance.random() < 0.48:
            allocator.free(alive.pop(chance.randrange(len(alive))))
        else:
            stream = chance.choice((0, 0, 7))
            alive.append(allocator.malloc(int(2 ** chance.uniform(6, 24)), stream))
    allocator.record_stream(alive[0], 7)
    return allocator, alive


def go_on(allocator, alive):
    """The same further steps for each: addresses, and the books at the end."""
    chance, alive, found = random.Random(2), list(alive), []
    for _ in range(500):
        if chance.random() < 0.5:
            allocator.free(alive.pop(chance.randrange(len(alive))))
        else:
            found.append(allocator.malloc(int(2 ** chance.uniform(6, 26))))
            alive.append(found[-1])
    allocator.empty_cache()
    return found, allocator.stats(), allocator.snapshot()


@pytest.mark.parametrize(
    "settings",
    ["", "expandable_segments:True", "max_split_size_mb:20,garbage_collection_threshold:0.5"],
)
def test_a_clone_goes_on_as_the_original(settings):
    allocator, alive = churned(settings)
    heard = []
    allocator.on_event = lambda *event: heard.append(event)
    before = allocator.stats(), allocator.snapshot()

    twin = clone(allocator)
    assert (twin.stats(), twin.snapshot()) == before
    expected = go_on(twin, alive)

    # THEN the original is as it was, has heard nothing, and does the same when its time comes
    assert (allocator.stats(), allocator.snapshot()) == before
    assert heard == []
    assert go_on(allocator, alive) == expected
    assert heard


def test_many_blocks_are_no_deep_recursion():
    allocator = CachingAllocator(SimulatedDriver(8 * GIB), Settings.parse(""))
    for _ in range(20_000):
        allocator.malloc(512)
    assert clone(allocator).stats() == allocator.stats()
