"""Laying out text in a terminal's columns, where some characters are two wide and some none."""

from __future__ import annotations

import re
import textwrap
import unicodedata

WIDTH = 80
_SIZE = re.compile(r"(\d) ([KMG]iB|bytes|%)")


def width(text: str) -> int:
    """Columns that a terminal gives to `text`."""
    return len(text) if text.isascii() else sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """`text`, cut with an ellipsis where it is wider than `columns`."""
    if width(text) <= columns:
        return text
    kept, room = [], columns - 1
    for character in text:
        room -= _columns(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def fit_middle(text: str, columns: int) -> str:
    """`text`, cut in its middle: the ends of a variable's name say more."""
    if width(text) <= columns:
        return text
    head = fit(text, columns // 2 + 1)
    tail = fit(text[::-1], columns - width(head) + 1)
    return head + tail[-2::-1]


def left(text: str, columns: int) -> str:
    """`text` cut or filled to `columns`, at the left."""
    text = fit(text, columns)
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """`text` filled to `columns`, at the right; a number is never cut."""
    return " " * (columns - width(text)) + text


def wrap(text: str, indent: str = "") -> list[str]:
    """`text` in lines of at most WIDTH columns, sizes whole; all but the first are indented."""
    whole = _SIZE.sub("\\1\u00a0\\2", text)  # textwrap does not break at a no-break space
    rows = textwrap.wrap(whole, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return [row.replace("\u00a0", " ") for row in rows]


def bar(share: float, columns: int) -> str:
    """A bar of `share` (0 to 1) of `columns`, in eighths of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * columns * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
