"""The search for the largest value that fits, on memory functions that are known."""

from __future__ import annotations

import contextlib

import pytest

from gpumem_magic.allocator.caching import (
    AllocationFailed,
    CachingAllocator,
    SimulatedDriver,
)
from gpumem_magic.allocator.script import Scribe
from gpumem_magic.fitting import Found, Try, search
from gpumem_magic.rehearsal import Rehearsals

ROOM = 16 << 30
MOST = 12
STARTS = (1, 8, 32, 100)
LARGEST = (1, 2, 3, 7, 64, 100, 777, 1000, 4096, 12_345, 99_999, 500_000, 1_000_000)
OFFSETS = (0.0, 0.01, 0.3, 0.7)


class Card:
    """Runs a memory function of the value, counts the tries, and knows the right answer."""

    def __init__(self, need, room=ROOM):
        self.need, self.room, self.tried = need, room, []

    def run(self, value):
        self.tried.append(value)
        need = self.need(value)
        fits = need <= self.room
        return Try(value, fits, need if fits else self.room, 2 * need + 512 * value)

    def rehearse(self, value):
        """After two tries it knows all, before nothing."""
        return self.need(value) <= self.room if len(self.tried) > 1 else None

    def answer(self):
        low, high = 0, 1
        while self.need(high) <= self.room:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.need(middle) <= self.room else (low, middle)
        return low

    def search(self, start, rehearse=None):
        found = carried_out(self.run, start, rehearse or (lambda value: None))
        assert found.tries == len(self.tried) == len(set(self.tried)) <= MOST + 2
        assert {found.value, found.failing} - {0, None} <= set(self.tried)
        return found

    def check(self, start, rehearse=None):
        found = self.search(start, rehearse)
        assert found == Found(self.answer(), self.answer() + 1, len(self.tried), True), self.tried
        return found


def carried_out(run, start, rehearse, room=ROOM):
    """What the search finds where `run` tells what a value comes to."""
    found = []

    def searching():
        found.append((yield from search(start, room, MOST, rehearse)))

    steps = searching()
    wanted = next(steps)
    with contextlib.suppress(StopIteration):
        while True:
            wanted = steps.send([run(value) for value in wanted])
    return found[0]


def rounded(size, to):
    return -(-size // to) * to


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", LARGEST)
@pytest.mark.parametrize("start", STARTS)
def test_rehearsals_are_confirmed(start, largest, offset):
    fixed = int(offset * ROOM)
    card = Card(lambda v: fixed + v * ((ROOM - fixed) // largest))
    card.check(start, card.rehearse)
    # THEN two tries confirm the answer; the others found runs to rehearse from
    assert len(card.tried) <= 7


@pytest.mark.parametrize("wrong", [-0.1, -0.03, -0.01, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("largest", [n for n in LARGEST if n >= 777])
def test_rehearsals_that_are_wrong_far_from_what_was_tried_are_corrected(largest, wrong):
    card = Card(lambda v: v * (ROOM // largest))

    def rehearse(value):
        nearest = min(card.tried, key=lambda known: abs(known - value))
        guess = card.need(value) + int(wrong * abs(value - nearest) * (ROOM // largest))
        return guess <= ROOM if len(card.tried) > 1 else None

    card.check(32, rehearse)


def test_rehearsals_that_do_not_tell_what_was_seen_are_ignored():
    card = Card(lambda v: v * (ROOM // 300))
    assert card.check(32, lambda value: True).value == 300
    card = Card(lambda v: v * (ROOM // 300))
    assert card.check(32, lambda value: False).value == 300


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", [n for n in LARGEST if n <= 100])
@pytest.mark.parametrize("start", STARTS)
def test_small_values_are_found_without_rehearsals(start, largest, offset):
    fixed = int(offset * ROOM)
    each = (ROOM - fixed) // largest
    shares = (0.05, 0.15, 0.3, 0.5)
    Card(lambda v: fixed + sum(rounded(int(v * each * s), 2 << 20) for s in shares)).check(start)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", LARGEST)
def test_without_rehearsals_no_more_is_claimed_than_was_seen(largest, offset):
    fixed, usable = int(offset * ROOM), int(0.97 * ROOM)
    card = Card(lambda v: fixed + v * ((usable - fixed) // largest), usable)
    found = card.search(32)
    assert found.value <= card.answer() < found.failing
    assert found.exact is (found.failing == found.value + 1)
    assert found.value >= 0.9 * card.answer() - 1


def test_nothing_fits():
    card = Card(lambda v: ROOM + v)
    assert card.search(32) == Found(0, 1, len(card.tried), True)
    assert card.tried[-1] == 1


def test_only_one_fits():
    Card(lambda v: v * (ROOM // 2 + 1)).check(32)


def test_a_value_without_effect_is_told_apart():
    found = carried_out(lambda v: Try(v, True, 1 << 30, 5 << 30), 32, lambda value: value < 1 << 60)
    assert not found.grows
    assert found.tries <= 4


def test_small_sizes_that_are_rounded_alike_are_no_reason_to_stop():
    card = Card(lambda v: (1 << 20) + rounded(v, 512) * 1024)
    found = card.search(1, card.rehearse)
    assert found.grows
    assert found.value > 1_000_000


def test_memory_that_stops_growing():
    """A batch larger than the dataset."""
    card = Card(lambda v: min(v, 1000) * (1 << 20))
    found = carried_out(lambda v: Try(v, True, card.need(v), card.need(v)), 32, lambda value: None)
    assert found.grows
    assert not found.exact
    assert found.failing is None
    assert found.value >= 4000
    assert found.tries < MOST


def test_what_cannot_be_told_in_12_tries_is_not_claimed():
    """A cliff without any sign of it, among a million values."""
    card = Card(lambda v: (1 << 30) + v * 512 + (ROOM if v > 765_432 else 0))
    found = card.search(1)
    assert found.tries == MOST
    assert not found.exact
    assert found.value <= 765_432 < found.failing


class Training:
    """A training step on the simulated allocator: parameters, activations, gradients, states."""

    def __init__(self, total, wide, square=0):
        self.total, self.wide, self.square = total, wide, square
        self.rehearsals = Rehearsals(CachingAllocator(SimulatedDriver(total)))

    def run(self, value):
        allocator = CachingAllocator(SimulatedDriver(self.total))
        scribe, fits = Scribe(allocator), True
        try:
            self.step(allocator, value)
        except AllocationFailed:
            fits = False
        script = scribe.script()
        self.rehearsals.add(value, script, fits)
        peak = allocator.stats()["allocated_bytes.all.peak"]
        return Try(value, fits, peak, int(script.sizes().sum()))

    def step(self, allocator, value):
        malloc, free = allocator.malloc, allocator.free
        weights = [40 << 20, 9 << 20, 3 << 20, 120 << 20, 1 << 16]
        widths = [self.wide * w + self.square * value for w in (3, 700, 1100, 90, 400, 5)]
        for weight in weights:
            malloc(weight)
        kept = []
        for width in widths:
            kept.append(malloc(value * width))
            free(malloc(value * width))
        if value > 1 << 12:  # a kernel that takes another way
            free(malloc(4 * value))
        gradient = malloc(value * widths[-1])
        for width, weight in zip(reversed(widths), weights + weights[:1], strict=True):
            following = malloc(value * width)
            free(gradient)
            free(kept.pop())
            gradient = following
            malloc(weight)
        for weight in weights:
            malloc(2 * weight)


@pytest.mark.parametrize("square", [0, 100])
@pytest.mark.parametrize("wide", [16, 1 << 10, 90 << 10])
@pytest.mark.parametrize("total", [3 << 30, 16 << 30, 80 << 30])
@pytest.mark.parametrize("start", STARTS)
def test_a_training_step_on_the_simulated_allocator(total, wide, square, start):
    """Fragments and whole segments decide what fits, not the sum of the tensors."""
    training = Training(total, wide, square)
    found = carried_out(training.run, start, training.rehearsals.fits, total)
    assert found.exact
    assert training.run(found.value).fits
    assert not training.run(found.value + 1).fits
