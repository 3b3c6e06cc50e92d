"""Rehearsals: what one value's requests tell of another's, on the allocator alone."""

from __future__ import annotations

import pytest

from gpumem_magic.allocator.caching import (
    AllocationFailed,
    CachingAllocator,
    SimulatedDriver,
)
from gpumem_magic.rehearsal import Rehearsals
from tests.allocator.test_script import written

MIB = 1 << 20
GIB = 1 << 30


def rehearsed(program, values, total=GIB):
    """Rehearsals that know of a program's runs with `values`."""
    rehearsals = Rehearsals(CachingAllocator(SimulatedDriver(total)))
    for value in values:
        rehearsals.add(value, *written(lambda a, v=value: program(a, v), total))
    return rehearsals


def really_fits(program, value, total=GIB):
    return written(lambda a: program(a, value), total)[1]


def training(allocator, value, square=0):
    """Steps of training: weights, activations that grow with the value, gradients, states."""
    malloc, free = allocator.malloc, allocator.free
    weights = [5 * MIB, 3 * MIB, 700, 9 * MIB]
    widths = [3 << 8, 700 << 6, 1100 << 5, 90, 400 << 7]
    kept_weights = [malloc(weight) for weight in weights]
    for step in range(3):
        kept = []
        for width in widths:
            kept.append(malloc(value * width + square * value * value + 40))
            free(malloc(value * width // 2 + 512))
        gradients = [malloc(weight) for weight in weights]
        while kept:
            free(kept.pop())
        if step == 0:
            kept_weights += [malloc(2 * weight) for weight in weights]
        for gradient in gradients:
            free(gradient)


@pytest.mark.parametrize("total", [GIB, 3 * GIB, 16 * GIB])
def test_two_runs_tell_every_other(total):
    # GIVEN what a training does with two small values
    rehearsals = rehearsed(training, [16, 64], total)
    # THEN the largest value that fits is told to the unit, fragments and retries included
    low, high = 64, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rehearsals.fits(middle) else (low, middle)
    assert low > 1000
    for value in (*range(low - 3, low + 4), low // 2, 3 * low // 4, 2 * low):
        assert rehearsals.fits(value) is really_fits(training, value, total), value


def test_three_runs_tell_squares():
    def program(allocator, value):
        training(allocator, value, square=64)

    rehearsals = rehearsed(program, [16, 64, 200])
    told = [rehearsals.fits(value) for value in range(500, 2000, 7)]
    assert told == [really_fits(program, value) for value in range(500, 2000, 7)]
    assert len(set(told)) == 2


def test_one_run_and_one_that_was_cut_tell_where_it_goes_through():
    rehearsals = rehearsed(training, [64])
    assert rehearsals.fits(64) is None
    rehearsals = rehearsed(training, [64, 20_000])
    assert (rehearsals.fits(64), rehearsals.fits(20_000)) == (True, False)


def test_other_requests_are_not_compared():
    # GIVEN a program that does something else from 100 on
    def program(allocator, value):
        training(allocator, value)
        if value >= 100:
            allocator.free(allocator.malloc(1 << 20))

    assert rehearsed(program, [64, 128]).fits(90) is None
    # THEN the runs that are alike tell, with what is different there
    rehearsals = rehearsed(program, [64, 128, 256])
    assert rehearsals.fits(1000) is really_fits(program, 1000)
    assert rehearsals.fits(100_000) is False


def test_a_program_that_goes_on_after_a_refusal_is_not_compared():
    def program(allocator, value):
        try:
            allocator.malloc(value * GIB)
        except AllocationFailed:
            allocator.malloc(value)

    rehearsals = rehearsed(program, [2, 3])
    assert rehearsals.fits(4) is None


def test_streams_have_pools_of_their_own():
    # GIVEN blocks that could serve again, were they not on another stream
    def program(allocator, value):
        allocator.free(allocator.malloc(value * MIB, 1))
        allocator.malloc(value * MIB)
        allocator.malloc(GIB - 850 * MIB)

    rehearsals = rehearsed(program, [20, 30])
    told = [rehearsals.fits(value) for value in range(40, 1000, 5)]
    assert told == [really_fits(program, value) for value in range(40, 1000, 5)]
    assert True in told
    assert False in told
