"""Bytes to text and back; the only place that formats or parses a size."""

from __future__ import annotations

import re
from collections.abc import Callable

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B|bytes)?\s*", re.IGNORECASE)
_POWER = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def format_bytes(size: int | None, decimals: int = 2) -> str:
    """`size` bytes as PyTorch writes them ("1.50 GiB", "512 bytes"); None is "unknown"."""
    if size is None:
        return "unknown"
    magnitude = abs(size)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if magnitude >= unit:
            return f"{size / unit:.{decimals}f} {name}"
    return f"{size} bytes"


def format_size(size: int | None) -> str:
    """`size` bytes for a table: "1.5 MiB"; below 10 GiB, where a decimal is 100 MiB, "1.54 GiB"."""
    return format_bytes(size, 2 if GIB <= abs(size or 0) < 10 * GIB else 1)


def format_some(size: int | None) -> str:
    """The same, for a table of which many cells are empty: "-" for 0 bytes."""
    return format_size(size) if size != 0 else "-"


def format_bytes_in_error(size: int) -> str:
    """`size` bytes as PyTorch's out-of-memory error has them: 1 MiB is "1024.00 KiB" there."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size > unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def format_change(size: int | None, form: Callable[[int | None], str] = format_bytes) -> str:
    """`size` bytes with its sign ("+512.00 MiB", "-1.00 KiB", "0 bytes"); None is "unknown"."""
    return f"+{form(size)}" if size is not None and size > 0 else form(size)


def parse_bytes(text: str) -> int:
    """Bytes meant by "24GiB", "500 MB" or "1024".

    GB and GiB both mean 2**30, as in the names of cards. Raises ValueError for anything else.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; write it like 24GiB, 500MiB or 1048576")
    number, unit = match.groups()
    return int(float(number) * 1024 ** _POWER[(unit or "")[:1].upper()])
