"""The search for the largest value that fits: which value to try next. Rehearsals tell where the
last one should be; where they cannot, gaps are halved."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from math import isqrt

from gpumem_magic.values.report import Report

_FIRST_JUMP = 64  # nothing is known yet of what a larger value costs, in memory or in time
_JUMP = 1024
_SURELY = 1000  # sizes are rounded: only values that differ so much must differ in memory
_ENDLESS = 1 << 48
_SPARED = 2
"""Tries up to which a guess and what refutes it are tried side by side."""

Rehearse = Callable[[int], bool | None]
"""Whether a value should fit, as far as earlier tries tell; None where they do not."""


@dataclass(frozen=True, slots=True)
class Try:
    """What one value came to. peak: the highest allocated level, traffic: all that was allocated,
    in bytes; they tell whether two values differ in memory."""

    value: int
    fits: bool
    peak: int
    traffic: int


def try_of(value: int, report: Report) -> Try:
    """What the report of a dry run says of `value`."""
    traffic = sum(line.allocated for line in report.lines)
    return Try(value, report.oom is None, report.peak.allocated or 0, traffic)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: `value` fits (0: none does), and where `exact`, value + 1 does not.

    failing: the smallest value seen not to fit. grows: False where the value does not change the
    memory, as far as values were tried.
    """

    value: int
    failing: int | None
    tries: int
    exact: bool
    grows: bool = True


@dataclass(frozen=True, slots=True)
class _Known:
    """All tries so far, in the order in which they were made."""

    tries: tuple[Try, ...]
    room: int
    fits: tuple[Try, ...] = field(init=False)
    """Those that fit, by value."""

    def __post_init__(self) -> None:
        fits = sorted((t for t in self.tries if t.fits), key=lambda t: t.value)
        object.__setattr__(self, "fits", tuple(fits))

    @property
    def high(self) -> int | None:
        return min((t.value for t in self.tries if not t.fits), default=None)

    @property
    def low(self) -> int:
        high = self.high
        return max((t.value for t in self.fits if high is None or t.value < high), default=0)

    @property
    def streak(self) -> int:
        """How many of the last tries came out as the last one did."""
        last = self.tries[-1].fits
        other = (i for i, t in enumerate(reversed(self.tries)) if t.fits is not last)
        return next(other, len(self.tries))

    def is_flat(self, since: int = 0) -> bool:
        """Whether values far apart take the same memory. since: the first one's place in `fits`."""
        if len(self.fits) < 2:
            return False
        first, last = self.fits[since], self.fits[-1]
        same = (first.peak, first.traffic) == (last.peak, last.traffic)
        return same and last.value >= _SURELY * first.value


def search(
    start: int, room: int, most: int, rehearse: Rehearse
) -> Generator[tuple[int, ...], Sequence[Try], Found]:
    """Find the largest value that fits: yields values to try and is sent what they came to. `start`
    is tried first, `most` values at most one after the other; a first guess and what refutes it
    are tried side by side.

    room: bytes on the card. What fits must fit with every smaller value too.
    """
    known = _Known((), room)
    wanted: tuple[int, ...] = (start,)
    runs = 0
    while wanted:
        tries = yield wanted
        runs += len(tries)
        # A value above one that failed says nothing new.
        end = next((i for i, each in enumerate(tries, 1) if not each.fits), len(tries))
        known = _Known((*known.tries, *tries[:end]), room)
        # A guess may be refuted again and again: then there is no try to spare beside it.
        more = most - len(known.tries)
        wanted = _next(known, rehearse)[: min(more, 2 if runs <= _SPARED else 1)]
    low, high = known.low, known.high
    return Found(low, high, runs, high == low + 1, not known.is_flat())


def _next(known: _Known, rehearse: Rehearse) -> tuple[int, ...]:
    """The values to try next; none when there is nothing more to learn."""
    low, high = known.low, known.high
    if high == low + 1 or (high is None and known.is_flat(-2)):
        return ()
    if high is not None and not known.fits:
        return (max(1, high // (4 if len(known.tries) == 1 else _JUMP)),)
    last = _rehearsed(low, high, rehearse)
    if last is not None:
        value = _confirming(known, last)
        return (value,) if value != last or high == value + 1 else (value, value + 1)
    if high is None:
        return (_upwards(known),)
    if rehearse(high) and (known.streak < 3 or known.tries[-1].fits):
        # by what small values do, it should be no less
        return (high - max(1, (high - low) // 8),)
    return (_middle(low, high),)


def _rehearsed(low: int, high: int | None, rehearse: Rehearse) -> int | None:
    """The last value from `low` on that should fit; None where it cannot be told, or where
    rehearsals do not even tell what was seen: that `low` fits and `high` does not."""
    if not rehearse(low) or (high is not None and rehearse(high) is not False):
        return None
    fails = high or 2 * low
    while high is None and rehearse(fails):
        low, fails = fails, 2 * fails
        if fails > _ENDLESS:
            return None
    between = range(low + 1, fails)
    return low + bisect_left(between, True, key=lambda value: not rehearse(value))


def _confirming(known: _Known, last: int) -> int:
    """The value to try if `last` should be the last that fits: itself, or the next if it is known
    to fit. Where that is refuted again and again, one from which rehearsals learn more."""
    low, high = known.low, known.high
    value = max(last, low + 1)
    if known.streak < 2:
        return value
    if not known.tries[-1].fits:
        return _middle(low, value)  # what comes after the failures is known from `low` only
    further = low + (1 << 2 * (known.streak - 3) if known.streak > 3 else 1)
    return max(value, further if high is None else min(further, _middle(low, high)))


def _upwards(known: _Known) -> int:
    """Everything fits so far: on to where memory should be full if it goes on growing so."""
    last = known.fits[-1]
    if len(known.fits) == 1:
        least = known.room * last.value // max(1, last.peak)  # if all of it grows in step
        return min(max(least, 2 * last.value), _FIRST_JUMP * last.value)
    before = known.fits[-2]
    rise = last.peak - before.peak
    if rise <= 0:
        return _JUMP * last.value
    full = last.value + (known.room - last.peak) * (last.value - before.value) // rise
    return min(max(full, last.value * 9 // 8 + 1), _JUMP * last.value)


def _middle(low: int, high: int) -> int:
    return isqrt(low * high) if high > 1.2 * low + 2 else (low + high) // 2
