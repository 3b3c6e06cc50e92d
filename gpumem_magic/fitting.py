"""The search for the largest value that fits: which value to try next, told from earlier tries.

Memory is close to a polynomial of a size that the user chooses, with steps of the allocator's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isqrt, sqrt

from gpumem_magic.report import Report

_FIRST_JUMP = 64  # nothing is known yet of what a larger value costs, in memory or in time
_JUMP = 1024
_PLATEAU = 4  # sizes are rounded: only values that differ so much must differ in memory
_SURELY = 1000
_ROUNDED = 32 << 10  # bytes; smaller differences tell more of rounding than of the curve


@dataclass(frozen=True, slots=True)
class Try:
    """What one value came to. Sizes in bytes.

    peaks: the highest allocated level of each line, 0 standing for the cell. traffic: all that was
    allocated. short: where it does not fit, how much the device lacked for the segment that the
    allocator wanted (0: unknown); place: the line where that was.
    """

    value: int
    fits: bool
    peaks: Mapping[int, int]
    traffic: int
    short: int = 0
    place: int = 0

    @property
    def memory(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """All that tells whether two values differ in memory."""
        return self.traffic, tuple(sorted(self.peaks.items()))


def try_of(value: int, report: Report) -> Try:
    """What the report of a dry run says of `value`."""
    peaks = {line.number: line.peak for line in report.lines if line.peak is not None}
    peaks[0] = report.peak.allocated or 0
    traffic = sum(line.allocated for line in report.lines)
    oom = report.oom
    if oom is None:
        return Try(value, True, peaks, traffic)
    short = max(0, (oom.segment or oom.requested) - (oom.device_free or 0))
    return Try(value, False, peaks, traffic, short, oom.line or 0)


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
    most: int
    room: int
    fits: tuple[Try, ...] = field(init=False)
    """Those that fit, by value."""

    def __post_init__(self) -> None:
        fits = sorted((t for t in self.tries if t.fits), key=lambda t: t.value)
        object.__setattr__(self, "fits", tuple(fits))

    @property
    def high(self) -> Try | None:
        return min((t for t in self.tries if not t.fits), key=lambda t: t.value, default=None)

    @property
    def low(self) -> int:
        high = self.high
        return max((t.value for t in self.fits if high is None or t.value < high.value), default=0)

    @property
    def left(self) -> int:
        return self.most - len(self.tries)

    @property
    def streak(self) -> int:
        """How many of the last tries came out as the last one did."""
        last = self.tries[-1].fits
        other = (i for i, t in enumerate(reversed(self.tries)) if t.fits is not last)
        return next(other, len(self.tries))


def search(run: Callable[[int], Try], start: int, room: int, most: int) -> Found:
    """Find the largest value that fits by at most `most` calls of `run`; `start` is tried first.

    room: bytes on the card. What fits must fit with every smaller value too.
    """
    known = _Known((), most, room)
    value: int | None = start
    while value is not None:
        known = _Known((*known.tries, run(value)), most, room)
        value = _next(known) if known.left else None
    low, high = known.low, known.high
    failing = None if high is None else high.value
    return Found(low, failing, len(known.tries), failing == low + 1, not _is_flat(known.fits))


def _is_flat(fits: Sequence[Try]) -> bool:
    """Whether values so far apart that sizes cannot be rounded alike take the same memory."""
    if len(fits) < 2 or fits[0].memory != fits[-1].memory:
        return False
    return fits[-1].value >= _SURELY * fits[0].value


def _next(known: _Known) -> int | None:
    """The value to try next; None when there is nothing more to learn."""
    low, high = known.low, known.high
    if high is None:
        return _upwards(known)
    if high.value - low == 1:
        return None
    if low == 0:
        return max(1, high.value // (4 if len(known.tries) == 1 else _JUMP))
    return _between(known, low, high.value)


def _upwards(known: _Known) -> int | None:
    """Everything fits so far."""
    first, last = known.fits[0], known.fits[-1]
    if len(known.fits) == 1:
        least = known.room * last.value // max(1, last.peaks[0])  # if all of it grows in step
        return min(max(least, 2 * last.value), _FIRST_JUMP * last.value)
    before = known.fits[-2]
    if _is_flat(known.fits):
        return None
    if before.memory == last.memory and last.value >= _PLATEAU * before.value:
        if first.memory != last.memory:
            return None  # it grew, and stopped
        return _JUMP * last.value
    estimate = _estimate(known)
    if estimate is None:
        return _JUMP * last.value
    crept = 4 * (last.value - before.value) if last.value < 1.05 * before.value else 0
    step = max(1, min(max(crept, last.value >> 12), _reach(known) // 8))
    return min(max(estimate, last.value + step), _JUMP * last.value)


def _between(known: _Known, low: int, high: int) -> int:
    """A value that fits and one that does not are known: try the estimate, or go on from where it
    was tried, further each time that the outcome was the same."""
    reach, estimate = _reach(known), _estimate(known)
    closable = high - low <= 2 * reach
    far = 4 if known.streak < 2 and estimate is not None and estimate < high else 1.2
    if estimate is None or (high > far * low and _is_refuted(known)):
        doubtful = known.streak == 1 and estimate is not None
        return max(_middle(low, high), high * 5 // 8 if doubtful else 0)
    off = max(low - estimate, estimate - high, 0)  # by how much tries have proved it wrong
    step = min(max(1 if closable else reach // 8, 2 * off, 1), reach) << 2 * (known.streak - 1)
    creeps = known.streak > 2  # what was to lie on the other side never does
    if estimate <= low or (creeps and known.tries[-1].fits):
        value = max(estimate, low + step)
    elif estimate >= high or creeps:
        value = min(estimate, high - step)
    else:
        value = estimate
    if closable:
        value = min(max(value, high - reach), low + reach)
    return value if low < value < high else _middle(low, high)


def _is_refuted(known: _Known) -> bool:
    """Whether the last try belies the curve: one through only two points, or not for the first
    time."""
    untested = len(_spread(known.fits)) < 3
    return not known.tries[-1].fits and (untested or known.streak > 1)


def _reach(known: _Known) -> int:
    """Halving closes a gap of so much with the tries that are left after the next one."""
    reach: int = 1 << (known.left - 1)
    return reach


def _middle(low: int, high: int) -> int:
    return isqrt(low * high) if high > 1.2 * low + 2 else (low + high) // 2


def _estimate(known: _Known) -> int | None:
    """The largest value that should fit: where the first line reaches the room that there is, or
    where nothing would be short any more."""
    points = _spread(known.fits)
    curves = {line: _curve(points, line) for line in points[0].peaks}
    reached = [curve.reaches(known.room) for curve in curves.values() if curve]
    curve, high = min(reached, default=None), known.high
    if curve is None or high is None or not high.short or 4 * high.value > 5 * curve:
        return curve  # far above the largest value it is another moment that fails
    enough = _enough(known, high, curves[0])
    return min(curve, enough) if enough > 2 * known.low - high.value else curve


def _enough(known: _Known, high: Try, curve: _Curve | None) -> int:
    """Where the smallest value that does not fit would have lacked nothing.

    What the device has to hold at that moment, unusable pieces included, grows as the allocated
    bytes do; two failures at one place tell how fast.
    """
    fails = [t for t in known.tries if not t.fits and t.place == high.place and t is not high]
    other = min(fails, key=lambda t: t.value, default=None)
    if other is not None and other.short > high.short and 4 * other.value <= 5 * high.value:
        slope = (other.short - high.short) / (other.value - high.value)
    elif curve is not None:
        slope = curve.slope(high.value)
    else:
        slope = known.room / high.value
    return high.value - ceil(high.short / slope)


def _spread(fits: Sequence[Try]) -> list[Try]:
    """The largest value that fits, and up to two smaller ones at some distance from each other."""
    points = [fits[-1]]
    for share in (0.95, 0.5):
        below = [t for t in fits if t.value <= share * points[-1].value]
        if below:
            points.append(below[-1])
    if len(points) == 1 and len(fits) > 1:
        points.append(fits[0])
    return points


@dataclass(frozen=True, slots=True)
class _Curve:
    """base + steep * d + bend * d * d bytes, where d is a value's distance from `start`; through
    points whose mean slope is `mean`."""

    start: int
    base: int
    steep: float
    bend: float
    mean: float

    def slope(self, value: int) -> float:
        """Bytes by which one more than `value` adds."""
        return max(self.steep + 2 * self.bend * (value - self.start), self.mean)

    def reaches(self, room: int) -> int:
        """The largest value with which it is within `room`."""
        rest = room - self.base
        square = self.steep * self.steep + 4 * self.bend * rest
        if not self.bend or square <= 0 or self.steep <= 0:
            return self.start + int(rest // self.mean)
        return self.start + int(2 * rest / (self.steep + sqrt(square)))


def _curve(points: Sequence[Try], line: int) -> _Curve | None:
    """The curve through a line's peaks (the largest value first); None where it does not grow."""
    levels = [(t.value, t.peaks[line]) for t in points if line in t.peaks]
    if len(levels) < 2:
        return None
    (x0, y0), (x1, y1) = levels[:2]
    mean, bend = (y0 - y1) / (x0 - x1), 0.0
    if mean <= 0:
        return None
    if len(levels) > 2:
        x2, y2 = levels[2]
        change = mean - (y1 - y2) / (x1 - x2)
        if abs(change) * (x1 - x2) > _ROUNDED:
            bend = change / (x0 - x2)
    return _Curve(x0, y0, mean + bend * (x0 - x1), bend, mean)
