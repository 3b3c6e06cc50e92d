"""The user's handle on one measured or predicted cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpumem_magic.events import Category, Cell, Device, Recording
from gpumem_magic.trace.findings import Block, Level, Line, OutOfMemory, Timeline, Trace


@dataclass(frozen=True, slots=True)
class Report:
    """Where the memory of one cell went on one device. Sizes in bytes, times in seconds, read-only.

    A number that is not known is None and `unknown` says why ("peak.device_used": "...").
    context: bytes the CUDA context takes; others: bytes of other processes; both after the cell.
    """

    name: str
    cell: Cell
    device: Device
    predicted: bool
    started: float
    seconds: float
    before: Level
    peak: Level
    after: Level
    context: int | None
    others: int | None
    lines: tuple[Line, ...]
    blocks: tuple[Block, ...]
    at_peak: Mapping[Category, int]
    at_end: Mapping[Category, int]
    timeline: Timeline
    oom: OutOfMemory | None
    retries: int
    error: str | None
    unknown: Mapping[str, str]
    notes: tuple[str, ...]

    # text() plot() to_dict() save(path) _repr_mimebundle_(): each imports its renderer inside the method


def build_report(recording: Recording, trace: Trace, name: str) -> Report:
    """Put what was recorded and what it means into one value."""
    raise NotImplementedError
