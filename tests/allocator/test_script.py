"""Scripts: what an allocator is asked for, written down and asked again."""

from __future__ import annotations

from gpumem_magic.allocator.caching import (
    AllocationFailed,
    CachingAllocator,
    SimulatedDriver,
    clone,
)
from gpumem_magic.allocator.script import Request, Scribe

MIB = 1 << 20
GIB = 1 << 30


def written(program, total=GIB, allocator=None):
    """The script of a program that asks an allocator, and whether it went through."""
    allocator = allocator or CachingAllocator(SimulatedDriver(total))
    scribe = Scribe(allocator)
    fits = True
    try:
        program(allocator)
    except AllocationFailed:
        fits = False
    return scribe.script(), fits


def test_requests_are_written_down():
    # GIVEN an allocator that holds a block already
    allocator = CachingAllocator(SimulatedDriver(GIB))
    old = allocator.malloc(3 * MIB)

    def program(allocator):
        first = allocator.malloc(1000)
        second = allocator.malloc(5 * MIB, 7)
        allocator.record_stream(second, 2)
        allocator.free(first)
        allocator.free(old)
        allocator.empty_cache()
        allocator.free(second)
        allocator.set_memory_fraction(0.5)

    start = clone(allocator)
    script, fits = written(program, allocator=allocator)
    # THEN every request is there, and none that the allocator made of itself
    assert fits
    assert list(zip(script.kind, script.number, script.stream, strict=True)) == [
        (Request.MALLOC, 1000, 0),
        (Request.MALLOC, 5 * MIB, 7),
        (Request.RECORD_STREAM, 1, 2),
        (Request.FREE, 0, 0),
        (Request.FREE, -old, 0),
        (Request.CALL, 0, 0),
        (Request.FREE, 1, 0),
        (Request.CALL, 1, 0),
    ]
    assert script.calls == (("empty_cache", ()), ("set_memory_fraction", (0.5,)))
    assert script.sizes().tolist() == [1000, 5 * MIB]
    assert script.refused == ()
    # AND the start is as it was, and may be asked again and again
    assert script.fits(start, script.sizes())
    assert not script.fits(start, script.sizes() * 1000)
    assert script.fits(start, script.sizes())
    assert start.allocated == 3 * MIB


def test_the_start_is_that_of_the_writing():
    allocator = CachingAllocator(SimulatedDriver(GIB))
    allocator.malloc(3 * MIB)
    scribe = Scribe(allocator)
    allocator.malloc(1000)
    assert (scribe.start.allocated, allocator.allocated) == (3 * MIB, 3 * MIB + 1024)


def test_what_is_freed_during_another_request_is_written_down():
    # GIVEN a tensor that dies while the allocator looks for room
    allocator = CachingAllocator(SimulatedDriver(GIB))
    scribe = Scribe(allocator)
    dying = [allocator.malloc(512)]
    allocator.on_event = lambda *event: dying and allocator.free(dying.pop())
    allocator.malloc(5 * MIB)
    # THEN a request made again would free it too
    assert scribe.script().kind.tolist() == [Request.MALLOC, Request.MALLOC, Request.FREE]


def test_what_a_retry_releases_is_no_request():
    # GIVEN a program whose second large block fits only in place of the first
    def program(allocator):
        allocator.free(allocator.malloc(600 * MIB))
        allocator.malloc(700 * MIB)

    script, fits = written(program)
    assert fits
    assert script.kind.tolist() == [Request.MALLOC, Request.FREE, Request.MALLOC]


def test_a_refusal_cuts_the_script():
    def program(allocator):
        allocator.malloc(600 * MIB)
        try:
            allocator.malloc(700 * MIB)
        finally:
            allocator.malloc(512)

    script, fits = written(program)
    assert not fits
    assert script.refused == (1,)
    assert script.until_refused().sizes().tolist() == [600 * MIB, 700 * MIB]
    start = CachingAllocator(SimulatedDriver(GIB))
    assert not script.until_refused().fits(start, script.until_refused().sizes())
