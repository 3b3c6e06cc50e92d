"""What a trace cannot tell, and why: the words that stand where a number would be a guess."""

from __future__ import annotations

from collections.abc import Mapping

from gpumem_magic.events import Recording
from gpumem_magic.trace.findings import Level
from gpumem_magic.trace.levels import Levels
from gpumem_magic.units import format_change

_NEED_EVENTS = ("peak.allocated", "peak.reserved", "peak.device_used")
_BUILT_FROM_EVENTS = ("lines", "blocks", "at_peak", "at_end", "timeline")


def name_losses(recording: Recording) -> Mapping[str, str]:
    """All that is unknown where events are missing."""
    reason = "PyTorch recorded none of the cell's events"
    if recording.dropped:
        lost = f"{recording.dropped:,} events were lost"
        reason = f"{lost}: the cell made more than the recording holds"
    return dict.fromkeys((*_NEED_EVENTS, *_BUILT_FROM_EVENTS), reason)


def name_gaps(recording: Recording, levels: Levels, peak: Level) -> Mapping[str, str]:
    """What is unknown although all events are there."""
    unknown = {}
    before, after = recording.before, recording.after
    if peak.reserved is None:
        reason = before.unknown.get("reserved") or after.unknown.get("reserved")
        unknown["peak.reserved"] = reason or "what was reserved was read neither before nor after"
        unknown["timeline.reserved"] = unknown["peak.reserved"]
    if peak.device_used is None:
        reason = before.unknown.get("device_used") or after.unknown.get("device_used")
        unknown["peak.device_used"] = reason or unknown.get(
            "peak.reserved", "what else uses the device was read neither before nor after"
        )
    missing = (after.allocated or 0) - int(levels.allocated[-1])
    if after.allocated is not None and missing:
        unknown["lines"] = f"{format_change(missing)} happened without an event"
    return unknown
