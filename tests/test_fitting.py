"""The search for the largest value that fits, on memory functions that are known."""

from __future__ import annotations

import pytest

from gpumem_magic.fitting import Found, Try, search
from gpumem_magic.sources.virtual.allocator import (
    AllocationFailed,
    CachingAllocator,
    SimulatedDriver,
)

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
        if need <= self.room:
            return Try(value, True, {0: need, 3: need}, 2 * need + 512 * value)
        return Try(value, False, {0: self.room}, self.room, min(need - self.room, ROOM >> 4), 3)

    def answer(self):
        low, high = 0, 1
        while self.need(high) <= self.room:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.need(middle) <= self.room else (low, middle)
        return low

    def check(self, start):
        found = search(self.run, start, ROOM, MOST)
        assert found == Found(self.answer(), self.answer() + 1, len(self.tried), True), self.tried
        assert {found.value, found.failing} - {0} <= set(self.tried)
        assert len(self.tried) == len(set(self.tried)) <= MOST


def rounded(size, to):
    return -(-size // to) * to


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", LARGEST)
@pytest.mark.parametrize("start", STARTS)
def test_memory_in_step_with_the_value(start, largest, offset):
    fixed = int(offset * ROOM)
    Card(lambda v: fixed + v * ((ROOM - fixed) // largest)).check(start)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", LARGEST)
def test_room_that_cannot_be_used(largest, offset):
    fixed, usable = int(offset * ROOM), int(0.97 * ROOM)
    Card(lambda v: fixed + v * ((usable - fixed) // largest), usable).check(32)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", LARGEST)
@pytest.mark.parametrize("start", STARTS)
def test_blocks_of_512_bytes(start, largest, offset):
    fixed = int(offset * ROOM)
    each = (ROOM - fixed) // largest
    shares = (0.05, 0.15, 0.3, 0.5)
    Card(lambda v: fixed + sum(rounded(int(v * each * s), 512) for s in shares)).check(start)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", [n for n in LARGEST if n <= 1000])
def test_segments_of_2_mib(largest, offset):
    fixed = int(offset * ROOM)
    each = (ROOM - fixed) // largest
    shares = (0.05, 0.15, 0.3, 0.5)
    Card(lambda v: fixed + sum(rounded(int(v * each * s), 2 << 20) for s in shares)).check(32)


@pytest.mark.parametrize("square", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("largest", LARGEST)
def test_memory_with_the_square_of_the_value(largest, offset, square):
    fixed = int(offset * ROOM)
    rest = ROOM - fixed
    straight, curved = rest * (1 - square) / largest, rest * square / largest**2
    Card(lambda v: fixed + int(v * straight) + int(v * v * curved)).check(64)


def test_lines_that_do_not_decide_yet():
    """Up to 100 the optimizer's step is the peak; the forward pass, on another line, grows."""

    def run(value):
        forward, step = (1 << 30) + value * (40 << 20), 5 << 30
        need = max(forward, step)
        if need <= ROOM:
            return Try(value, True, {0: need, 5: forward, 7: step}, forward + step)
        return Try(value, False, {0: ROOM}, ROOM, need - ROOM, 5)

    found = search(run, 4, ROOM, MOST)
    assert (found.value, found.exact) == (384, True)
    assert found.tries <= 7


def test_nothing_fits():
    card = Card(lambda v: ROOM + v)
    assert search(card.run, 32, ROOM, MOST) == Found(0, 1, len(card.tried), True)
    assert card.tried[-1] == 1


def test_only_one_fits():
    Card(lambda v: v * (ROOM // 2 + 1)).check(32)


def test_a_value_without_effect_is_told_apart():
    found = search(lambda v: Try(v, True, {0: 1 << 30}, 5 << 30), 32, ROOM, MOST)
    assert not found.grows
    assert found.tries <= 4


def test_small_sizes_that_are_rounded_alike_are_no_reason_to_stop():
    card = Card(lambda v: (1 << 20) + rounded(v, 512) * 1024)
    found = search(card.run, 1, ROOM, MOST)
    assert found.grows
    assert found.value > 1_000_000


def test_memory_that_stops_growing():
    """A batch larger than the dataset."""
    card = Card(lambda v: min(v, 1000) * (1 << 20))
    found = search(lambda v: Try(v, True, {0: card.need(v)}, card.need(v)), 32, ROOM, MOST)
    assert found.grows
    assert not found.exact
    assert found.failing is None
    assert found.value >= 4000
    assert found.tries < MOST


def test_what_cannot_be_told_in_12_tries_is_not_claimed():
    """A cliff without any sign of it, among a million values."""
    card = Card(lambda v: (1 << 30) + v * 512 + (ROOM if v > 765_432 else 0))
    found = search(card.run, 1, ROOM, MOST)
    assert found.tries == MOST
    assert not found.exact
    assert found.value <= 765_432 < found.failing


def training_step(value, total, wide):
    """A training step on the simulated allocator: parameters, activations, gradients, states."""
    allocator = CachingAllocator(SimulatedDriver(total, context=0))
    weights = [40 << 20, 9 << 20, 3 << 20, 120 << 20, 1 << 16]
    widths = [wide * (w << 10) for w in (3, 700, 1100, 90, 400, 5)]
    peaks, line = {0: 0}, 0
    traffic = 0

    def malloc(size):
        nonlocal traffic
        address = allocator.malloc(size, 0)
        traffic += allocator.size_of(address)
        peaks[line] = max(peaks.get(line, 0), allocator.allocated)
        peaks[0] = max(peaks[0], allocator.allocated)
        return address

    try:
        for weight in weights:
            malloc(weight)
        line, kept = 1, []
        for width in widths:
            kept.append(malloc(value * width))
            allocator.free(malloc(value * width))
        line, gradient = 2, malloc(value * widths[-1])
        for width, weight in zip(reversed(widths), weights + weights[:1], strict=True):
            following = malloc(value * width)
            allocator.free(gradient)
            allocator.free(kept.pop())
            gradient = following
            malloc(weight)
        line = 3
        for weight in weights:
            malloc(2 * weight)
    except AllocationFailed as failed:
        short = failed.segment - allocator.driver.free
        return Try(value, False, peaks, traffic, short, line)
    return Try(value, True, peaks, traffic)


@pytest.mark.parametrize(("total", "wide"), [(3, 2), (3, 40), (16, 16), (16, 90), (80, 100)])
@pytest.mark.parametrize("start", STARTS)
def test_a_training_step_on_the_simulated_allocator(total, wide, start):
    """Fragments and whole segments decide what fits, not the sum of the tensors."""
    found = search(lambda value: training_step(value, total << 30, wide), start, total << 30, MOST)
    assert found.exact
    assert 1 < found.value < 1000
    assert training_step(found.value, total << 30, wide).fits
    assert not training_step(found.value + 1, total << 30, wide).fits


def test_hypothesis_straight_lines():
    hypothesis = pytest.importorskip("hypothesis")
    numbers = hypothesis.strategies.integers

    @hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
    @hypothesis.given(largest=numbers(1, 10**6), fixed=numbers(0, 90), start=numbers(1, 512))
    def check(largest, fixed, start):
        offset = ROOM * fixed // 100
        each = (ROOM - offset) // largest
        Card(lambda v: offset + rounded(v * each, 512)).check(start)

    check()
