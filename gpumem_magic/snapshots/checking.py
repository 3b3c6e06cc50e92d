"""Whether plain values have the shape of PyTorch's snapshots, as far as it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MOST = 1 << 62
"""No address, size or time reaches it."""

_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free", "inactive")


def check(snapshot: Any) -> None:
    """Raises ValueError that names the first value that no allocator can have written."""
    if not isinstance(snapshot, dict) or not {"segments", "device_traces"} <= snapshot.keys():
        raise ValueError(
            "not a memory snapshot of PyTorch: it has no segments and device_traces, as "
            "torch.cuda.memory._dump_snapshot writes them"
        )
    for place, segment in _items(snapshot["segments"], "segments"):
        _segment(segment, place)
    seen: set[int] = set()
    for place, trace in _items(snapshot["device_traces"], "device_traces"):
        for number, entry in enumerate(_expect(trace, list, place)):
            _entry(entry, place, number, seen)
    settings = _expect(snapshot.get("allocator_settings", {}), dict, "allocator_settings")
    _whole(settings.get("max_split_size", 0), "allocator_settings.max_split_size", -1)
    divisions = settings.get("roundup_power2_divisions", {})
    for power, parts in _expect(divisions, dict, "roundup_power2_divisions").items():
        if not isinstance(power, str) or not power.isdigit():
            raise ValueError(f"roundup_power2_divisions: {power!r} is no power")
        _whole(parts, f"roundup_power2_divisions[{power!r}]")


def _segment(segment: Any, place: str) -> None:
    _expect(segment, dict, place)
    _whole(segment.get("device", 0), f"{place}.device", most=1 << 10)
    start = _whole(segment.get("address"), f"{place}.address")
    end = start + _whole(segment.get("total_size"), f"{place}.total_size")
    for inner, block in _items(segment.get("blocks"), f"{place}.blocks"):
        _expect(block, dict, inner)
        at = _whole(block.get("address", start), f"{inner}.address")
        start = at + _whole(block.get("size"), f"{inner}.size")
        _whole(block.get("requested_size", 0), f"{inner}.requested_size")
        if block.get("state") not in _STATES:
            raise ValueError(f"{inner}.state: {block.get('state')!r} is no state of a block")
        if start > end:
            raise ValueError(f"{inner} ends behind its segment")


def _entry(entry: Any, place: str, number: int, seen: set[int]) -> None:
    """Check an entry of a trace; what is right, as nearly all are, costs no words."""
    if type(entry) is dict and type(entry.get("action")) is str:
        numbers = (entry.get("size"), entry.get("addr", 0), entry.get("time_us", 0))
        if all(type(value) is int and 0 <= value < _MOST for value in numbers):
            frames = entry.get("frames") or ()
            if id(frames) not in seen:
                _frames(frames, f"{place}[{number}].frames", seen)
            return
    where = f"{place}[{number}]"
    _expect(entry, dict, where)
    _expect(entry.get("action"), str, f"{where}.action")
    for name, default in (("size", None), ("addr", 0), ("time_us", 0)):
        _whole(entry.get(name, default), f"{where}.{name}")


def _frames(frames: Any, place: str, seen: set[int]) -> None:
    """Check a stack; lists and frames are shared, and looked at once."""
    seen.add(id(frames))
    for frame in _expect(frames or [], list, place):
        if id(frame) not in seen:
            seen.add(id(frame))
            _frame(frame, place)


def _frame(frame: Any, place: str) -> None:
    _expect(frame, dict, f"a frame of {place}")
    _whole(frame.get("line"), f"a line in {place}")
    for name in ("filename", "name"):
        _expect(frame.get(name), str, f"a {name} in {place}")


def _items(values: Any, place: str) -> Iterator[tuple[str, Any]]:
    for index, value in enumerate(_expect(values, list, place)):
        yield f"{place}[{index}]", value


def _expect(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{place} should be a {kind.__name__}, not {type(value).__name__}")
    return value


def _whole(value: Any, place: str, least: int = 0, most: int = _MOST) -> int:
    if type(value) is not int or not least <= value < most:
        raise ValueError(f"{place} should be a whole number from {least}, not {str(value)[:40]}")
    return value
