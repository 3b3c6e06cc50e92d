"""The scales of the timeline: its limit, its ticks, where memory ran out; arithmetic only."""

from __future__ import annotations

import numpy as np

from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import OutOfMemory, Timeline
from gpumem_magic.values.report import Report


def limit_of(report: Report) -> int | None:
    """Bytes that PyTorch could reserve: the card's, less what others and the context take of it."""
    level = report.peak
    if level.device_used is None or level.reserved is None:
        return report.device.total or None
    return report.device.total - (level.device_used - level.reserved)


LOW_WIDTH = 560
"""Pixels of a picture in a report: where there are only some 340, its text can still be read."""

SIGHT = 3
"""What is further than this many times the highest level is told, not drawn."""


def highest(line: Timeline) -> int:
    """The highest level that is drawn: of what was allocated, or reserved where that is near."""
    allocated, reserved = _most(line)
    return max(allocated, reserved) if shows_reserved(line) else allocated


def shows_reserved(line: Timeline) -> bool:
    """Whether what was reserved is drawn: beside a large cache, a cell's course would be flat."""
    allocated, reserved = _most(line)
    return reserved <= SIGHT * allocated or not allocated


def above(line: Timeline, limit: int | None, in_sight: bool) -> str:
    """What is too far above to be drawn, in words; the limit, where that is drawn."""
    _, reserved = _most(line)
    far = [] if shows_reserved(line) else [f"reserved {format_bytes(reserved)}"]
    if limit is not None and not in_sight:
        far.append(f"limit {format_bytes(limit)}")
    if far:
        return f"{' and '.join(far)}, far above"
    return f"limit {format_bytes(limit)}" if limit is not None else ""


def _most(line: Timeline) -> tuple[int, int]:
    return int(line.allocated.max(initial=0)), int(line.reserved.max(initial=0))


def steps(top: int) -> list[int]:
    """At most six round sizes from 0 to `top`: powers of two apart."""
    step = 1 << max((max(top, 1) // 5).bit_length(), 0)
    if top // step < 3 and step > 1:
        step //= 2
    return list(range(0, top + 1, step))


def tick(size: float) -> str:
    """A round size without the zeros behind it: "1.5 GiB"."""
    number, unit = format_bytes(int(size)).split()
    return f"{float(number):g} {unit}"


def moments(line: Timeline) -> tuple[list[int], list[str]]:
    """Six places along the axis and the time at each."""
    if not len(line.time):
        return [], []
    places = np.unique(np.linspace(0, len(line.time) - 1, 6).round().astype(int)).tolist()
    whole = float(line.time[-1])
    return places, [_moment(float(line.time[place]), whole) for place in places]


def _moment(seconds: float, whole: float) -> str:
    """`seconds` with the digits that tell moments of a cell of `whole` seconds apart."""
    if seconds <= 0:
        return "0"
    return f"{seconds * 1000:.3g} ms" if whole < 1 else f"{seconds:.{1 if whole >= 30 else 2}f} s"


def failure_level(line: Timeline, oom: OutOfMemory) -> int:
    """Bytes that were allocated when memory ran out."""
    point = failure_point(line, oom)
    return int(line.allocated[point]) if point is not None else 0


def failure_point(line: Timeline, oom: OutOfMemory) -> int | None:
    """Where memory ran out; the peak of its line where the report does not say."""
    if oom.point is not None or line.peak < 0:
        return oom.point
    there = np.flatnonzero(line.line == (oom.line or 0))
    return int(there[line.allocated[there].argmax()]) if len(there) else line.peak
