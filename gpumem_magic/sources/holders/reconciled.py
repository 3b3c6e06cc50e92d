"""Puts an inventory together: what the device shows = allocated + cached + context + others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.values.findings import Level
from gpumem_magic.values.inventory import HolderKind, Holding, Inventory
from gpumem_magic.values.recording import Category, Reading

_UNLISTED = (
    "Sizes and holders are those of the storages that Python comes to; what libraries hold is "
    "unknown, and so is what lies free in reserved memory: {why}."
)
_CUT_SHORT = (
    "The look ended {why}, with not everything looked at: what is unknown here may have a name. "
    "del what is large and no longer needed, then look again."
)


def put_together(
    memory: DeviceMemory,
    holdings: Sequence[Holding],
    sizes: Mapping[Category, int],
    cut_short: str,
) -> Inventory:
    """The inventory of these holdings. cut_short: why not everything was looked at."""
    reading = memory.reading
    context = _difference(reading.process_used, reading.reserved)
    others = _difference(reading.device_used, reading.process_used)
    unknown = dict(reading.unknown)
    if context is None:
        unknown["context"] = _reason(reading, "process_used", "reserved")
    if others is None:
        unknown["others"] = _reason(reading, "device_used", "process_used")
    return Inventory(
        device=memory.device,
        level=Level(reading.allocated, reading.reserved, reading.device_used),
        context=context,
        others=others,
        processes=tuple(p for p in memory.processes if p.pid != os.getpid()),
        cached=memory.free,
        holdings=tuple(holdings),
        by_category=sizes,
        unknown=unknown,
        notes=tuple(_notes(memory, cut_short if _has_unknown(holdings) else "")),
    )


def _notes(memory: DeviceMemory, cut_short: str) -> Iterator[str]:
    if memory.unlisted:
        yield _UNLISTED.format(why=memory.unlisted)
    if cut_short:
        yield _CUT_SHORT.format(why=cut_short)


def _has_unknown(holdings: Sequence[Holding]) -> bool:
    return any(holding.kind is HolderKind.UNKNOWN for holding in holdings)


def _difference(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def _reason(reading: Reading, *sizes: str) -> str:
    missing = next(size for size in sizes if getattr(reading, size) is None)
    return reading.unknown.get(missing, f"{missing} was not read")
