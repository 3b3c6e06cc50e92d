"""Whether plain values have the shape of PyTorch's snapshots, as far as it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpumem_magic.sources.cuda.history import ACTIONS, EntryColumns
from gpumem_magic.values.recording import Category, Label, Stack

_MOST = 1 << 62
"""No address, size or time reaches it."""

_LINES = 1 << 31
"""No line of Python code reaches it: its compiler counts them in a C int."""

_KINDS = {word: kind for kind in Category for word in (kind.value, kind.value.replace(" ", "_"))}
_LONGEST_NAME = 200
_LONGEST_TEXT = 1 << 18  # of a path or a function: names of C++ templates grow long

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
    for place, trace in _items(snapshot["device_traces"], "device_traces"):
        _expect(trace, (list, Trace), place)
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


class Trace(EntryColumns):
    """The entries of one device, taken into columns as they come and then emptied: as plain values
    they would need five times the memory of their file.

    Looks like a list to the unpickler, which adds a thousand entries at a time. labels: the kinds
    and names that our own files tell, and kinds those of `torch.profiler`.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self._checked: set[int] = set()
        self.labels: list[Label] = []

    def extend(self, entries: Sequence[Any]) -> None:
        """Check and take entries, and empty them. Raises ValueError as `take`."""
        self.take(entries)
        for entry in entries:
            entry.clear()

    def take(self, entries: Sequence[Any]) -> None:
        """Check and take entries. Raises ValueError that names the first that cannot be."""
        begin, wrong = len(self), None
        try:
            super().extend(entries)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            wrong = error
        # Nearly all entries are right: each is looked at only where some are not.
        if wrong or len(self) - begin < len(entries) or not self._in_range(begin):
            for index, entry in enumerate(entries, begin):
                _entry(entry, f"{self._place}[{index}]")
        if wrong:
            raise ValueError(f"{self._place} holds what no allocator wrote ({wrong})")
        if any("category" in entry for entry in entries):
            self._label([entry for entry in entries if entry["action"] in ACTIONS], begin)
        if self.device_free is not None:
            _whole(self.device_free, f"device_free in {self._place}")

    def _label(self, entries: Sequence[Any], begin: int) -> None:
        for row, entry in enumerate(entries, begin + 1):
            kind, name = _KINDS.get(str(entry.get("category"))), entry.get("user_metadata")
            if kind and entry["action"] == "alloc":
                known = name[:_LONGEST_NAME] if name and isinstance(name, str) else None
                self.labels.append(Label(row, entry.get("addr", 0), kind, known))

    def _in_range(self, begin: int) -> bool:
        columns = [column[begin:] for column in (self.addresses, self.requested, self.micros)]
        return all(min(new) >= 0 and max(new) < _MOST for new in columns if new)

    def _read(self, raw: Sequence[Any]) -> Stack:
        _frames(raw, f"{self._place}[{len(self.stack)}].frames", self._checked)
        return super()._read(raw)


def _entry(entry: Any, place: str) -> None:
    """Say what is wrong with an entry."""
    _expect(entry, dict, place)
    _expect(entry.get("action"), str, f"{place}.action")
    for name, default in (("size", None), ("addr", 0), ("time_us", 0)):
        _whole(entry.get(name, default), f"{place}.{name}")
    _expect(entry.get("frames") or [], (list, tuple), f"{place}.frames")


def _frames(frames: Any, place: str, seen: set[int]) -> None:
    """Check a stack; lists and frames are shared, and looked at once."""
    seen.add(id(frames))
    for frame in _expect(frames or [], (list, tuple), place):
        if id(frame) not in seen:
            seen.add(id(frame))
            _frame(frame, place)


def _frame(frame: Any, place: str) -> None:
    _expect(frame, dict, f"a frame of {place}")
    _whole(frame.get("line"), f"a line in {place}", most=_LINES)
    for name in ("filename", "name"):
        if len(_expect(frame.get(name), str, f"a {name} in {place}")) > _LONGEST_TEXT:
            raise ValueError(f"a {name} in {place} is too long to be one")


def _items(values: Any, place: str) -> Iterator[tuple[str, Any]]:
    for index, value in enumerate(_expect(values, list, place)):
        yield f"{place}[{index}]", value


def _expect(value: Any, kinds: type | tuple[type, ...], place: str) -> Any:
    kind = kinds if isinstance(kinds, type) else kinds[0]
    if not isinstance(value, kinds):
        raise ValueError(f"{place} should be a {kind.__name__}, not {type(value).__name__}")
    return value


def _whole(value: Any, place: str, least: int = 0, most: int = _MOST) -> int:
    if type(value) is not int or not least <= value < most:
        raise ValueError(f"{place} should be a whole number from {least}, not {str(value)[:40]}")
    return value
