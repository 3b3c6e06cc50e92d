"""What the numbers of an out-of-memory text read as: full, fragmented, limited, ..."""

from __future__ import annotations

from gpumem_magic.oom_texts.values import Origin, Outlook, Reading, Size
from gpumem_magic.units import MIB

# c10/cuda/CUDACachingAllocator.cpp: kSmallBuffer, kLargeBuffer, kRoundLarge
_SMALL_SEGMENT, _LARGE_SEGMENT, _ROUND = 2 * MIB, 20 * MIB, 2 * MIB
_BLOCK = 512


def find_outlook(reading: Reading) -> Outlook:
    """What the numbers read as; two decimals must leave no doubt, or it is EITHER or UNKNOWN."""
    asked, total, free = reading.asked, reading.total, reading.free
    if reading.origin is not Origin.ALLOCATOR:
        return Outlook.UNKNOWN
    if asked is None:
        return Outlook.TOO_LARGE if reading.endless else Outlook.UNKNOWN
    if total is not None and asked.low > total.high:
        return Outlook.TOO_LARGE
    held = _held(reading)
    if total is not None and held is not None and held.low > total.high:
        return Outlook.SPILLED
    if _limited(reading, asked):
        return Outlook.LIMITED
    if free is None:
        return Outlook.UNKNOWN
    if free.low >= asked.high:
        return Outlook.CONTRADICTORY
    return _full_or_fragmented(reading, asked, free)


def _held(reading: Reading) -> Size | None:
    return reading.reserved or reading.allocated


def _limited(reading: Reading, asked: Size) -> bool:
    """The allocator asks no device once its limit would be passed."""
    if reading.allowed is None:
        return False
    held, roomy = _held(reading), reading.free is not None and reading.free.low >= asked.high
    if held is None:
        return roomy
    wanted = held + asked if reading.other is None else held + reading.other + asked
    if roomy or reading.backend == "MPS":  # nothing but the limit can have stopped it
        return wanted.high > reading.allowed.low
    return wanted.low > reading.allowed.high


def _full_or_fragmented(reading: Reading, asked: Size, free: Size) -> Outlook:
    cached, others = reading.cached, reading.others
    if cached is None:
        return Outlook.UNKNOWN
    if cached.low >= asked.high:
        return Outlook.FRAGMENTED
    if (cached + free).high >= smallest_request(reading):
        return Outlook.EITHER
    if others is not None and others.low >= (asked - free).high:
        return Outlook.OTHERS
    return Outlook.FULL


def smallest_request(reading: Reading) -> int:
    """The least that the code can have asked for, given the segment that the text names."""
    asked = reading.asked
    if asked is None:
        return 0
    if asked.low <= _SMALL_SEGMENT <= asked.high:
        return _BLOCK
    if asked.low <= _LARGE_SEGMENT <= asked.high:
        return MIB + _BLOCK
    if any(size % _ROUND == 0 for size in _multiples_near(asked)):
        return max(asked.low - _ROUND, 0) + _BLOCK
    return asked.low


def _multiples_near(size: Size) -> range:
    """The multiples of 2 MiB that the printed number can stand for."""
    first = -(-size.low // _ROUND) * _ROUND
    return range(first, size.high + 1, _ROUND)
